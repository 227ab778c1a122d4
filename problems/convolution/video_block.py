"""Space and time apart: a 1x3x3 convolution of frames, then 3x1x1 through time."""

import torch
from torch import nn

batch = 2
channels = 48
frames = 16
size = 48
TINY = {"batch": 1, "channels": 4, "frames": 4, "size": 6}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        middle = channels * 3 // 2
        self.space = nn.Conv3d(channels, middle, (1, 3, 3), padding=(0, 1, 1))
        self.time = nn.Conv3d(middle, channels, (3, 1, 1), padding=(1, 0, 0))

    def forward(self, x):
        return self.time(torch.relu(self.space(x))) + x


def get_inputs():
    return [torch.randn(batch, channels, frames, size, size)]


def get_init_inputs():
    return [channels]
