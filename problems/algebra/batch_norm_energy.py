"""Training batch norm of a transposed convolution, then pooling twice: variances by moments of the input."""

import torch
from torch import nn

batch = 24
inside = 8
outside = 20
size = 28
TINY = {"batch": 2, "inside": 3, "outside": 4, "size": 5}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.up = nn.ConvTranspose3d(inside, outside, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm3d(outside)
        self.pool = nn.AvgPool3d(2)

    def forward(self, x):
        return self.pool(self.pool(self.norm(self.up(x))))


def get_inputs():
    return [torch.randn(batch, inside, size, size, size)]


def get_init_inputs():
    return [inside, outside]
