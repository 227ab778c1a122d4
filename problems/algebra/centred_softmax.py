"""Shifts that a softmax does not see: the maximum is subtracted by hand, and a constant added."""

import torch
from torch import nn

rows = 24000
columns = 1400
TINY = {"rows": 4, "columns": 11}


class Model(nn.Module):
    def forward(self, x):
        x = x - x.amax(dim=1, keepdim=True) + 3.0
        return torch.softmax(x * 0.5 + 7.0, dim=1)


def get_inputs():
    return [4.0 * torch.randn(rows, columns)]


def get_init_inputs():
    return []
