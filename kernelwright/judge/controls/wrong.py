"""Known wrong: one element is off by 1 %."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        result = torch.relu_(self.linear(x)).add_(x, alpha=0.5)
        result[-1, -1] *= 1.01
        return result
