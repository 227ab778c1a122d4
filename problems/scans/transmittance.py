"""Volume rendering of a radiance field: how much light reaches each sample, and the pixel's colour."""

import torch
from torch import nn

rays = 65000
samples = 96
TINY = {"rays": 4, "samples": 8}


class Model(nn.Module):
    def forward(self, density, colour, step):
        opacity = 1.0 - torch.exp(-torch.relu(density) * step)
        clear = torch.cumprod(1.0 - opacity + 1e-6, dim=1)
        before = torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], dim=1)
        weights = opacity * before
        return (weights.unsqueeze(-1) * colour).sum(dim=1), weights.sum(dim=1)


def get_inputs():
    return [torch.randn(rays, samples), torch.rand(rays, samples, 3), 0.02 + 0.02 * torch.rand(rays, samples)]


def get_init_inputs():
    return []
