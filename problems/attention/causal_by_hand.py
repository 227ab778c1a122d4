"""Causal self-attention in plain operators, with projections: what small GPT repositories contain."""

import torch
from torch import nn

batch = 4
tokens = 448
features = 480
heads = 8
TINY = {"batch": 2, "tokens": 7, "features": 16, "heads": 2}


class Model(nn.Module):
    def __init__(self, features, heads, tokens):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.register_buffer("mask", torch.tril(torch.ones(tokens, tokens)))

    def forward(self, x):
        batch, tokens, features = x.shape
        q, k, v = self.project(x).split(features, dim=2)
        q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) * (features // self.heads) ** -0.5
        scores = scores.masked_fill(self.mask[:tokens, :tokens] == 0, float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, features))


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [features, heads, tokens]
