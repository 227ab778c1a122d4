"""Cross-attention of picture tokens to a text prompt: many queries, few keys."""

import torch
from torch import nn

batch = 4
pixels = 1600
words = 77
features = 256
context = 512
heads = 8
TINY = {"batch": 2, "pixels": 9, "words": 4, "features": 8, "context": 6, "heads": 2}


class Model(nn.Module):
    def __init__(self, features, context, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(context, features, bias=False)
        self.value = nn.Linear(context, features, bias=False)
        self.out = nn.Linear(features, features)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, text):
        q, k, v = self.split(self.query(x)), self.split(self.key(text)), self.split(self.value(text))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
        return self.out(mixed.transpose(1, 2).flatten(2)) + x


def get_inputs():
    return [torch.randn(batch, pixels, features), torch.randn(batch, words, context)]


def get_init_inputs():
    return [features, context, heads]
