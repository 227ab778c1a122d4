"""A layer of a Fourier neural operator: complex weights on the lowest frequencies, beside a pointwise path."""

import torch
import torch.nn.functional as F
from torch import nn

samples = 16
channels = 32
side = 64
modes = 12
TINY = {"samples": 2, "channels": 3, "side": 8, "modes": 2}


class Model(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.randn(channels, channels, modes, modes, 2) / channels)
        self.high = nn.Parameter(torch.randn(channels, channels, modes, modes, 2) / channels)
        self.path = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        m, low, high = self.modes, torch.view_as_complex(self.low), torch.view_as_complex(self.high)
        spectrum = torch.fft.rfft2(x, norm="ortho")
        mixed = torch.zeros_like(spectrum)
        mixed[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], low)
        mixed[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], high)
        return F.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:], norm="ortho") + self.path(x))


def get_inputs():
    return [torch.randn(samples, channels, side, side)]


def get_init_inputs():
    return [channels, modes]
