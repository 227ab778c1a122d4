"""Grouped 3x3 convolution of ResNeXt: 32 paths in one operator, stride two."""

import torch
from torch import nn

batch = 16
channels = 256
size = 56
groups = 32
TINY = {"batch": 2, "channels": 8, "size": 8, "groups": 4}


class Model(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.paths = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(self.paths(x)))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, groups]
