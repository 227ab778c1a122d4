"""Rows divided by their Euclidean length, a block of rows at a time."""

import torch
from torch import nn

ROWS = 4


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        for start in range(0, x.shape[0], ROWS):
            stop = min(start + ROWS, x.shape[0])
            tile = x[start:stop]
            length = torch.sqrt(tile.square().sum(dim=1, keepdim=True))
            out[start:stop] = tile / length.clamp(min=1e-12)
        return out
