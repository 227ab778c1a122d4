"""Optional arguments: a mask that is given, a bias that is not, and a plain number."""

import torch
from torch import nn

batch = 24
heads = 8
tokens = 300
TINY = {"batch": 2, "heads": 2, "tokens": 5}


class Model(nn.Module):
    def forward(self, scores, mask=None, bias=None, scale=1.0):
        scores = scores * scale
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores + (1.0 - mask) * -10000.0
        return torch.softmax(scores, dim=-1)


def get_inputs():
    mask = torch.ones(tokens, tokens).tril()[None, None]
    return [3.0 * torch.randn(batch, heads, tokens, tokens), mask, None, 0.35]


def get_init_inputs():
    return []
