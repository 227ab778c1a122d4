"""Batch norm, ReLU and the overlapping max pool at the entrance of a residual network."""

import torch
from torch import nn

batch = 32
channels = 72
size = 120
TINY = {"batch": 2, "channels": 4, "size": 9}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x):
        return self.pool(torch.relu(self.norm(x)))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
