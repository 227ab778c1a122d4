"""Bottleneck of a deep residual network: narrow, convolve, widen, add and activate."""

import torch
from torch import nn

batch = 72
wide = 192
narrow = 48
size = 28
TINY = {"batch": 2, "wide": 6, "narrow": 3, "size": 5}


class Model(nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.first = nn.Conv2d(wide, narrow, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(narrow)
        self.second = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(narrow)
        self.third = nn.Conv2d(narrow, wide, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(wide)

    def forward(self, x):
        y = torch.relu(self.norm1(self.first(x)))
        y = torch.relu(self.norm2(self.second(y)))
        return torch.relu(self.norm3(self.third(y)) + x)


def get_inputs():
    return [torch.randn(batch, wide, size, size)]


def get_init_inputs():
    return [wide, narrow]
