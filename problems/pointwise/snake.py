"""Snake activation of BigVGAN-like vocoders: x + sin(a x)^2 / a with a learned frequency per channel."""

import torch
from torch import nn

batch = 12
channels = 192
samples = 18000
TINY = {"batch": 2, "channels": 6, "samples": 50}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.log_frequency = nn.Parameter(torch.randn(channels) * 0.2)

    def forward(self, x):
        frequency = self.log_frequency.exp()[None, :, None]
        return x + (frequency * x).sin().square() / (frequency + 1e-9)


def get_inputs():
    return [torch.randn(batch, channels, samples)]


def get_init_inputs():
    return [channels]
