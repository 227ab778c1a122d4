"""A WaveNet layer: dilated causal convolution, tanh times sigmoid, residual and skip outputs."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 20
channels = 64
samples = 6000
dilation = 16
TINY = {"batch": 2, "channels": 4, "samples": 30, "dilation": 3}


class Model(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.dilation = dilation
        self.filter = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.mix = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x):
        content, gate = self.filter(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        residual, skip = self.mix(torch.tanh(content) * torch.sigmoid(gate)).chunk(2, dim=1)
        return (x + residual) * 0.7071, skip


def get_inputs():
    return [torch.randn(batch, channels, samples)]


def get_init_inputs():
    return [channels, dilation]
