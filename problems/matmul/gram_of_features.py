"""Gram matrices of feature maps, scaled by their size: the fingerprint of a picture's style."""

import torch
from torch import nn

batch = 12
channels = 192
size = 80
TINY = {"batch": 2, "channels": 5, "size": 6}


class Model(nn.Module):
    def forward(self, x):
        flat = x.flatten(2)
        return flat @ flat.mT / flat.shape[-1]


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return []
