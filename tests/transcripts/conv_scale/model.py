"""A convolution, a learned bias per channel, a ReLU, and twice its result."""

import torch
from torch import nn

batch = 4
channels_in = 3
channels_out = 8
size = 20


class Model(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.shift = nn.Parameter(torch.randn(channels_out, 1, 1))

    def forward(self, x):
        return torch.relu(self.conv(x) + self.shift) * 2.0


def get_inputs():
    return [torch.randn(batch, channels_in, size, size)]


def get_init_inputs():
    return [channels_in, channels_out]
