"""Pixel norm of progressively grown GANs: every pixel's channel vector to unit mean square."""

import torch
from torch import nn

batch = 8
channels = 256
size = 128
TINY = {"batch": 2, "channels": 6, "size": 5}


class Model(nn.Module):
    def forward(self, x):
        return x / (x.square().mean(dim=1, keepdim=True) + 1e-8).sqrt()


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return []
