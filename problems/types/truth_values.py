"""Masks combined with logic, then used to choose between two predictions."""

import torch
from torch import nn

rows = 2000
columns = 12000
TINY = {"rows": 3, "columns": 20}


class Model(nn.Module):
    def forward(self, left, right, seen, trusted):
        use = (seen & trusted) | (left > 0.5)
        return torch.where(use, left, 0.5 * right), use & ~seen


def get_inputs():
    shape = (rows, columns)
    return [torch.randn(shape), torch.randn(shape), torch.rand(shape) < 0.5, torch.rand(shape) < 0.7]


def get_init_inputs():
    return []
