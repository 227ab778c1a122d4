"""One new token against a cache of keys and values, which grows by concatenation."""

import torch
from torch import nn

batch = 16
heads = 16
past = 1500
features = 80
TINY = {"batch": 2, "heads": 2, "past": 6, "features": 5}


class Model(nn.Module):
    def forward(self, query, key, value, keys, values):
        keys = torch.cat([keys, key], dim=2)
        values = torch.cat([values, value], dim=2)
        weights = torch.softmax(query @ keys.mT * query.shape[-1] ** -0.5, dim=-1)
        return weights @ values, keys, values


def get_inputs():
    one, many = (batch, heads, 1, features), (batch, heads, past, features)
    return [torch.randn(one), torch.randn(one), torch.randn(one), torch.randn(many), torch.randn(many)]


def get_init_inputs():
    return []
