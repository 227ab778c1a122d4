"""Logits capped by a tanh, over flat tiles."""

import torch
from torch import nn

TILE = 32


class ModelNew(nn.Module):
    def __init__(self, cap, temperature):
        super().__init__()
        self.cap = cap
        self.temperature = temperature

    def forward(self, logits):
        values = logits.reshape(-1)
        out = torch.empty_like(values)
        for start in range(0, values.numel(), TILE):
            stop = min(start + TILE, values.numel())
            out[start:stop] = self.cap * torch.tanh(values[start:stop] / self.cap) / self.temperature
        return out.view(logits.shape)
