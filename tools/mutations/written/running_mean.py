"""Running means by blocks, the total of each block carried into the next."""

import torch
from torch import nn

TILE = 16


class ModelNew(nn.Module):
    def forward(self, x):
        steps = x.shape[1]
        out = torch.empty_like(x)
        carry = torch.zeros_like(x[:, :1])
        for start in range(0, steps, TILE):
            stop = min(start + TILE, steps)
            sums = torch.cumsum(x[:, start:stop], dim=1) + carry
            carry = sums[:, -1:]
            count = torch.arange(start + 1, stop + 1, device=x.device, dtype=x.dtype)
            out[:, start:stop] = sums / count
        return out
