"""Grouped-query attention: four query heads share each key and value head."""

import torch
from torch import nn

batch = 9
tokens = 400
heads = 16
shared = 4
features = 64
TINY = {"batch": 2, "tokens": 5, "heads": 4, "shared": 2, "features": 6}


class Model(nn.Module):
    def __init__(self, heads, shared):
        super().__init__()
        self.repeats = heads // shared

    def forward(self, q, k, v):
        k = k.repeat_interleave(self.repeats, dim=1)
        v = v.repeat_interleave(self.repeats, dim=1)
        weights = torch.softmax(q @ k.transpose(2, 3) / q.shape[-1] ** 0.5, dim=-1)
        return weights @ v


def get_inputs():
    return [torch.randn(batch, heads, tokens, features), torch.randn(batch, shared, tokens, features),
            torch.randn(batch, shared, tokens, features)]


def get_init_inputs():
    return [heads, shared]
