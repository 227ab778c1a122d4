"""A wide linear layer of which only the sum over its outputs is used, halved and shifted."""

import torch
from torch import nn

rows = 2600
inside = 1500
outside = 1200
TINY = {"rows": 4, "inside": 7, "outside": 6}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        return torch.sum(self.linear(x), dim=1, keepdim=True) / 2.0 + 1.0


def get_inputs():
    return [torch.randn(rows, inside)]


def get_init_inputs():
    return [inside, outside]
