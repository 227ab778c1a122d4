"""A linear layer, a group norm, and values cut off at -1 and 1."""

import torch
from torch import nn

batch = 32
features_in = 48
features_out = 64
groups = 8


class Model(nn.Module):
    def __init__(self, features_in, features_out, groups):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)
        self.norm = nn.GroupNorm(groups, features_out)

    def forward(self, x):
        return torch.clamp(self.norm(self.linear(x)), -1.0, 1.0)


def get_inputs():
    return [torch.randn(batch, features_in)]


def get_init_inputs():
    return [features_in, features_out, groups]
