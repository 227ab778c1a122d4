"""One token at a time: a matrix times a vector, then a residual, where memory decides the speed."""

import torch
from torch import nn

inside = 18000
outside = 7000
TINY = {"inside": 20, "outside": 16}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside) * inside**-0.5)

    def forward(self, x, residual):
        return torch.mv(self.weight, x) + residual


def get_inputs():
    return [torch.randn(inside), torch.randn(outside)]


def get_init_inputs():
    return [inside, outside]
