"""Vector quantisation of a VQ-VAE: the nearest code of each latent vector replaces it."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 36
channels = 64
size = 40
codes = 512
TINY = {"batch": 2, "channels": 4, "size": 3, "codes": 6}


class Model(nn.Module):
    def __init__(self, codes, channels):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, channels))

    def forward(self, x):
        flat = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        distances = flat.pow(2).sum(1, keepdim=True) - 2.0 * flat @ self.codes.t() + self.codes.pow(2).sum(1)
        chosen = distances.argmin(dim=1)
        found = F.embedding(chosen, self.codes).view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)
        return found, (found - x).square().mean()


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [codes, channels]
