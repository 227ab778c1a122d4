"""Max pooling along time with dilation, from a detector of keywords."""

import torch
from torch import nn

batch = 48
channels = 128
samples = 8000
TINY = {"batch": 2, "channels": 3, "samples": 40}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool1d(5, stride=3, padding=2, dilation=2)

    def forward(self, x):
        return self.pool(x.abs()).log1p()


def get_inputs():
    return [torch.randn(batch, channels, samples)]


def get_init_inputs():
    return []
