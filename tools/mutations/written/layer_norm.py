"""A residual is added, then rows are normalised, a block of rows at a time."""

import torch
from torch import nn

ROWS = 4


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features, eps=1e-12)

    def forward(self, x, residual):
        features = x.shape[-1]
        rows, others = x.reshape(-1, features), residual.reshape(-1, features)
        out = torch.empty_like(rows)
        for start in range(0, rows.shape[0], ROWS):
            stop = min(start + ROWS, rows.shape[0])
            tile = rows[start:stop] + others[start:stop]
            mean = tile.mean(dim=1, keepdim=True)
            centred = tile - mean
            variance = centred.square().mean(dim=1, keepdim=True)
            scaled = centred * torch.rsqrt(variance + self.norm.eps)
            out[start:stop] = scaled * self.norm.weight + self.norm.bias
        return out.reshape(x.shape)
