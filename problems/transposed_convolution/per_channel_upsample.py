"""Learned bilinear upsampling: a transposed convolution with one filter per class, scores added."""

import torch
from torch import nn

batch = 64
classes = 24
size = 48
TINY = {"batch": 2, "classes": 3, "size": 5}


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.up = nn.ConvTranspose2d(classes, classes, 4, stride=2, padding=1, groups=classes, bias=False)

    def forward(self, coarse, fine):
        return self.up(coarse) + 0.5 * fine


def get_inputs():
    return [torch.randn(batch, classes, size, size), torch.randn(batch, classes, 2 * size, 2 * size)]


def get_init_inputs():
    return [classes]
