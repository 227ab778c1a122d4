"""Attention scores with ALiBi: a penalty by distance, one slope per head, and the causal mask."""

import torch
from torch import nn

batch = 6
heads = 12
tokens = 500
TINY = {"batch": 2, "heads": 3, "tokens": 7}


class Model(nn.Module):
    def __init__(self, heads, tokens):
        super().__init__()
        places = torch.arange(tokens)
        distance = (places[None, :] - places[:, None]).float()
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        bias = torch.where(distance > 0, torch.tensor(float("-inf")), slopes[:, None, None] * distance)
        self.register_buffer("bias", bias)

    def forward(self, scores):
        return torch.softmax(scores / 8.0 + self.bias, dim=-1)


def get_inputs():
    return [8.0 * torch.randn(batch, heads, tokens, tokens)]


def get_init_inputs():
    return [heads, tokens]
