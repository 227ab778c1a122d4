"""ConvNeXt block: depthwise filter, layer norm over channels, two linear maps, layer scale, residual."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 8
channels = 112
size = 40
TINY = {"batch": 2, "channels": 4, "size": 7}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(0.1 + 0.1 * torch.rand(channels))

    def forward(self, x):
        y = self.filter(x).permute(0, 2, 3, 1)
        y = self.narrow(F.gelu(self.widen(self.norm(y))))
        return x + (self.scale * y).permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
