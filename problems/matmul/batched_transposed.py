"""A product of batches in which the left operand comes transposed, scaled and shifted."""

import torch
from torch import nn

batch = 40
rows = 380
columns = 420
depth = 260
TINY = {"batch": 2, "rows": 5, "columns": 6, "depth": 7}


class Model(nn.Module):
    def forward(self, a, b):
        return torch.baddbmm(torch.ones_like(b[:, :1, :]), a.transpose(1, 2), b, beta=0.5, alpha=0.1)


def get_inputs():
    return [torch.randn(batch, depth, rows), torch.randn(batch, depth, columns)]


def get_init_inputs():
    return []
