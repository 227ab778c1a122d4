"""Adaptive instance norm: content features take over mean and deviation of style features."""

import torch
from torch import nn

batch = 12
channels = 224
size = 88
TINY = {"batch": 2, "channels": 4, "size": 5}


class Model(nn.Module):
    def forward(self, content, style):
        axes = (2, 3)
        mean, deviation = style.mean(axes, keepdim=True), style.std(axes, keepdim=True)
        normal = (content - content.mean(axes, keepdim=True)) / (content.std(axes, keepdim=True) + 1e-5)
        return normal * deviation + mean


def get_inputs():
    shape = (batch, channels, size, size)
    return [torch.randn(shape), 0.5 + 2.0 * torch.randn(shape)]


def get_init_inputs():
    return []
