"""A diagonal state-space layer (S4D): its filter is a sum of complex powers, applied by transforms."""

import torch
from torch import nn

samples = 16
channels = 64
length = 1024
TINY = {"samples": 2, "channels": 3, "length": 8}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.damping = nn.Parameter(torch.randn(channels, 16) - 1)
        self.angle = nn.Parameter(3 * torch.rand(channels, 16))
        self.mix = nn.Parameter(torch.randn(channels, 16, 2) / 16)
        self.skip = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        length = x.shape[-1]
        exponent = torch.complex(-torch.exp(self.damping), self.angle)
        powers = torch.exp(exponent.unsqueeze(-1) * torch.arange(length, device=x.device))
        filters = 2 * torch.einsum("cn,cnl->cl", torch.view_as_complex(self.mix), powers).real
        spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(filters, n=2 * length)
        return torch.fft.irfft(spectrum, n=2 * length)[..., :length] + self.skip * x


def get_inputs():
    return [torch.randn(samples, channels, length)]


def get_init_inputs():
    return [channels]
