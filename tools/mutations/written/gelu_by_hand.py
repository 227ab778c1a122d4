"""Bias and the tanh form of GELU over flat tiles."""

import torch
from torch import nn

TILE = 32


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features) * 0.1)

    def forward(self, x):
        values = (x + self.bias).flatten()
        out = torch.empty_like(values)
        for start in range(0, values.numel(), TILE):
            stop = min(start + TILE, values.numel())
            tile = values[start:stop]
            inner = 0.7978845608 * (tile + 0.044715 * tile * tile * tile)
            out[start:stop] = 0.5 * tile * (1.0 + torch.tanh(inner))
        return out.view(x.shape)
