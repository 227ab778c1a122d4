"""A matrix times a vector by blocks of rows, and a residual."""

import torch
from torch import nn

ROWS = 4


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside) * inside**-0.5)

    def forward(self, x, residual):
        outside = self.weight.shape[0]
        out = torch.empty_like(residual)
        for start in range(0, outside, ROWS):
            stop = min(start + ROWS, outside)
            out[start:stop] = torch.mv(self.weight[start:stop], x) + residual[start:stop]
        return out
