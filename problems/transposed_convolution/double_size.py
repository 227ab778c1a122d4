"""Upsampling by two with a 4x4 transposed convolution, batch norm and ReLU: a step of DCGAN."""

import torch
from torch import nn

batch = 24
inside = 128
outside = 64
size = 24
TINY = {"batch": 2, "inside": 5, "outside": 4, "size": 5}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.up = nn.ConvTranspose2d(inside, outside, 4, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)

    def forward(self, x):
        return torch.relu(self.norm(self.up(x)))


def get_inputs():
    return [torch.randn(batch, inside, size, size)]


def get_init_inputs():
    return [inside, outside]
