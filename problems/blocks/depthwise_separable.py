"""Depthwise and pointwise convolution with hard swish: the unit of mobile networks."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 56
inside = 64
outside = 128
size = 52
TINY = {"batch": 2, "inside": 4, "outside": 5, "size": 6}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.depthwise = nn.Conv2d(inside, inside, 5, padding=2, groups=inside, bias=False)
        self.norm1 = nn.BatchNorm2d(inside)
        self.pointwise = nn.Conv2d(inside, outside, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)

    def forward(self, x):
        x = F.hardswish(self.norm1(self.depthwise(x)))
        return F.hardswish(self.norm2(self.pointwise(x)))


def get_inputs():
    return [torch.randn(batch, inside, size, size)]


def get_init_inputs():
    return [inside, outside]
