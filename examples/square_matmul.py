"""One large square product: PyTorch does it well already, so nothing is replaced."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The product of two square matrices."""

    def forward(self, a, b):
        return torch.matmul(a, b)


size = 2048
TINY = {"size": 64}  # for --tiny


def get_inputs():
    return [torch.rand(size, size), torch.rand(size, size)]


def get_init_inputs():
    return []
