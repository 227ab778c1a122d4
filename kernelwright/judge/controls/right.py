"""Known right: the model's computation, with a step saved."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu_(self.linear(x)).add_(x, alpha=0.5)
