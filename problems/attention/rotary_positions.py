"""Rotary position embedding of queries and keys: pairs of halves turn by an angle that grows with place."""

import torch
from torch import nn

batch = 8
heads = 20
tokens = 900
features = 96
TINY = {"batch": 2, "heads": 2, "tokens": 6, "features": 8}


class Model(nn.Module):
    def __init__(self, tokens, features):
        super().__init__()
        speeds = 10000.0 ** (-torch.arange(0, features, 2) / features)
        angles = torch.outer(torch.arange(tokens).float(), speeds)
        self.register_buffer("cosine", torch.cat([angles, angles], dim=-1).cos(), persistent=False)
        self.register_buffer("sine", torch.cat([angles, angles], dim=-1).sin(), persistent=False)

    def turn(self, x):
        left, right = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat([-right, left], dim=-1) * self.sine

    def forward(self, q, k):
        return self.turn(q), self.turn(k)


def get_inputs():
    return [torch.randn(batch, heads, tokens, features), torch.randn(batch, heads, tokens, features)]


def get_init_inputs():
    return [tokens, features]
