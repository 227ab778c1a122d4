"""Sum over the middle axis of per-head contributions: the reduced axis is strided in memory."""

import torch
from torch import nn

batch = 72
heads = 48
features = 9000
TINY = {"batch": 2, "heads": 5, "features": 17}


class Model(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.importance = nn.Parameter(torch.randn(heads, 1))

    def forward(self, x):
        return torch.sum(x * self.importance, dim=1)


def get_inputs():
    return [torch.randn(batch, heads, features)]


def get_init_inputs():
    return [heads]
