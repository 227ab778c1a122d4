"""Stochastic depth in training: a residual branch is dropped whole, sample by sample, by a mask drawn in place."""

import torch
from torch import nn

samples = 64
tokens = 196
features = 384
TINY = {"samples": 6, "tokens": 4, "features": 8}


class Model(nn.Module):
    def __init__(self, features, drop):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.branch = nn.Sequential(nn.Linear(features, features), nn.GELU())
        self.scale = nn.Parameter(torch.full((features,), 0.5))
        self.drop = drop

    def forward(self, x):
        branch = self.scale * self.branch(self.norm(x))
        if self.training and self.drop > 0:
            keep = x.new_empty((x.shape[0], 1, 1)).bernoulli_(1 - self.drop)
            branch = branch * keep.div_(1 - self.drop)
        return x + branch


def get_inputs():
    return [torch.randn(samples, tokens, features)]


def get_init_inputs():
    return [features, 0.2]
