"""Doubling a volume's size on the way up a 3-D U-Net, with the skip connection added."""

import torch
from torch import nn

batch = 9
inside = 48
outside = 24
size = 20
TINY = {"batch": 1, "inside": 4, "outside": 3, "size": 4}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.up = nn.ConvTranspose3d(inside, outside, 2, stride=2)
        self.norm = nn.InstanceNorm3d(outside)

    def forward(self, x, skip):
        return torch.relu(self.norm(self.up(x)) + skip)


def get_inputs():
    return [torch.randn(batch, inside, size, size, size), torch.randn(batch, outside, *[2 * size] * 3)]


def get_init_inputs():
    return [inside, outside]
