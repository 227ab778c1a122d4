"""A forward full of in-place operators on its own intermediate results."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 24
channels = 128
size = 64
TINY = {"batch": 2, "channels": 3, "size": 5}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        y = x * 0.5
        y += self.shift
        F.relu(y, inplace=True)
        y.mul_(2.0).sub_(0.3)
        y.clamp_(max=3.0)
        return y.tanh_()


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
