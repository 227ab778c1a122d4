"""RMS norm of bfloat16 states with its statistics in float32, and a residual."""

import torch
from torch import nn

tokens = 16000
features = 3072
TINY = {"tokens": 4, "features": 16}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=torch.bfloat16))

    def forward(self, x, residual):
        wide = (x + residual).float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return self.weight * normal.to(torch.bfloat16)


def get_inputs():
    shape = (tokens, features)
    return [torch.randn(shape, dtype=torch.bfloat16), torch.randn(shape, dtype=torch.bfloat16)]


def get_init_inputs():
    return [features]
