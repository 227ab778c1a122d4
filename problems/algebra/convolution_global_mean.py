"""A convolution whose only reader is the mean over the picture: a sum of linear maps."""

import torch
from torch import nn

batch = 16
inside = 48
outside = 96
size = 64
TINY = {"batch": 2, "inside": 3, "outside": 4, "size": 7}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.convolve = nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x):
        return self.convolve(x).mean(dim=(2, 3))


def get_inputs():
    return [torch.randn(batch, inside, size, size)]


def get_init_inputs():
    return [inside, outside]
