"""A convolution, batch norm and ReLU on pictures that lie in channels-last order."""

import torch
from torch import nn

batch = 12
inside = 64
outside = 96
size = 48
TINY = {"batch": 2, "inside": 3, "outside": 4, "size": 6}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.convolve = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)

    def forward(self, x):
        return torch.relu(self.norm(self.convolve(x)))


def get_inputs():
    return [torch.randn(batch, inside, size, size).contiguous(memory_format=torch.channels_last)]


def get_init_inputs():
    return [inside, outside]
