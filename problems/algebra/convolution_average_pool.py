"""A convolution followed by average pooling: the pool can move in front or into the filter."""

import torch
from torch import nn

batch = 72
inside = 24
outside = 48
size = 60
TINY = {"batch": 2, "inside": 3, "outside": 4, "size": 8}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.convolve = nn.Conv2d(inside, outside, 3)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        return torch.sigmoid(self.pool(self.convolve(x)))


def get_inputs():
    return [torch.randn(batch, inside, size, size)]


def get_init_inputs():
    return [inside, outside]
