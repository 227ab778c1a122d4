"""Learned filter bank over raw audio: long kernels, large stride, as a speech model's first layer."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 24
samples = 64000
channels = 256
TINY = {"batch": 2, "samples": 200, "channels": 6}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.filters = nn.Conv1d(1, channels, kernel_size=20, stride=10, padding=10)

    def forward(self, wave):
        return F.relu(self.filters(wave))


def get_inputs():
    return [torch.randn(batch, 1, samples)]


def get_init_inputs():
    return [channels]
