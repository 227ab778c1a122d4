"""Each token mixed with the one before it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        out = torch.empty_like(x)
        before = torch.zeros_like(x[:, 0])
        for token in range(x.shape[1]):
            out[:, token] = x[:, token] * self.mix + before * (1 - self.mix)
            before = x[:, token]
        return out
