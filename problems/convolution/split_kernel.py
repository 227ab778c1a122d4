"""A large kernel as a row and a column, 1x9 then 9x1, with batch norm and swish between."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 8
channels = 80
height = 34
width = 58
TINY = {"batch": 2, "channels": 4, "height": 10, "width": 11}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.row = nn.Conv2d(channels, channels, (1, 9), padding=(0, 4), bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.column = nn.Conv2d(channels, channels, (9, 1), padding=(4, 0))

    def forward(self, x):
        return self.column(F.silu(self.norm(self.row(x))))


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
