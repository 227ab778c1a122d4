"""Batch norm with running statistics and ReLU, where folding into a convolution is not possible."""

import torch
from torch import nn

batch = 28
channels = 208
size = 60
TINY = {"batch": 2, "channels": 5, "size": 4}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.eval()

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
