"""Embeddings scaled to unit length before a nearest-neighbour search."""

import torch
import torch.nn.functional as F
from torch import nn

count = 150000
features = 384
TINY = {"count": 6, "features": 20}


class Model(nn.Module):
    def forward(self, x):
        return F.normalize(x, p=2.0, dim=-1)


def get_inputs():
    return [torch.randn(count, features)]


def get_init_inputs():
    return []
