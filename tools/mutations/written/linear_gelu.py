"""A linear layer by tiles of the contraction, then GELU."""

import torch
import torch.nn.functional as F
from torch import nn

TILE = 16


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        weight = self.linear.weight
        inside = x.shape[1]
        total = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
        for start in range(0, inside, TILE):
            stop = min(start + TILE, inside)
            total = total + torch.mm(x[:, start:stop], weight[:, start:stop].t())
        return F.gelu(total + self.linear.bias)
