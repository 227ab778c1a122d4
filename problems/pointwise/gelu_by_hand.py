"""Bias and the tanh form of GELU written out, as older GPT-2 ports carry it in their feed-forward layers."""

import torch
from torch import nn

tokens = 12288
features = 3072
TINY = {"tokens": 6, "features": 40}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features) * 0.1)

    def forward(self, x):
        x = x + self.bias
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features]
