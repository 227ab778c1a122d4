"""Top-down merge of a feature pyramid: lateral projections and nearest upsampling at three levels."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 18
channels = 64
size = 12
TINY = {"batch": 2, "channels": 4, "size": 3}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(channels * 2**i, channels, 1) for i in range(3))
        self.smooth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3))

    def forward(self, fine, middle, coarse):
        c = self.lateral[2](coarse)
        m = self.lateral[1](middle) + F.interpolate(c, scale_factor=2, mode="nearest")
        f = self.lateral[0](fine) + F.interpolate(m, scale_factor=2, mode="nearest")
        return [smooth(level) for smooth, level in zip(self.smooth, (f, m, c))]


def get_inputs():
    return [torch.randn(batch, channels * 2**i, size * 2 ** (2 - i), size * 2 ** (2 - i)) for i in range(3)]


def get_init_inputs():
    return [channels]
