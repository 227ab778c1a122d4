"""The root of the mean square, summed over tiles of features."""

import torch
from torch import nn

TILE = 16


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(features))

    def forward(self, x):
        features = x.shape[-1]
        squares = torch.zeros(*x.shape[:-1], 1, dtype=x.dtype, device=x.device)
        for start in range(0, features, TILE):
            stop = min(start + TILE, features)
            squares = squares + x[..., start:stop].square().sum(dim=-1, keepdim=True)
        scale = torch.rsqrt(squares / features + 1e-6)
        return x * scale * self.weight
