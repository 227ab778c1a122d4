"""Weights that a checkpoint carries and the forward does not use, and an input that it ignores."""

import torch
from torch import nn

rows = 20000
features = 700
TINY = {"rows": 4, "features": 6}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.used = nn.LayerNorm(features)
        self.left_over = nn.Linear(features, 3)
        self.register_buffer("old_counter", torch.zeros(1))

    def forward(self, x, ignored):
        return torch.sigmoid(self.used(x)) * x


def get_inputs():
    return [torch.randn(rows, features), torch.randn(3)]


def get_init_inputs():
    return [features]
