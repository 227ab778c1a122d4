"""Features that are normalised, gated, and averaged over all positions."""

import torch
from torch import nn
from torch.nn import functional as F

batch, channels, size = 16, 64, 64
TINY = {"batch": 2, "channels": 8, "size": 12}  # for --tiny: quick trials of the same file


class GatedPool(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x):
        gate = torch.sigmoid(x * self.scale + self.shift)
        return (F.silu(self.norm(x)) * gate).mean(dim=(2, 3))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
