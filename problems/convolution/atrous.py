"""Dilated 3x3 convolutions at three rates, summed: the context module of a segmentation network."""

import torch
from torch import nn

batch = 4
channels = 88
size = 66
TINY = {"batch": 2, "channels": 4, "size": 12}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=rate, dilation=rate, bias=False) for rate in (1, 3, 6))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(sum(branch(x) for branch in self.branches)))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
