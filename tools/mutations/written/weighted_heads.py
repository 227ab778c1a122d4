"""A weighted sum over heads, head by head."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.importance = nn.Parameter(torch.randn(heads, 1))

    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        for head in range(x.shape[1]):
            total = total + x[:, head] * self.importance[head]
        return total
