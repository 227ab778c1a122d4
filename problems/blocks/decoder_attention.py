"""RMS norm, projections, rotary positions and causal attention of a Llama-like decoder."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 2
tokens = 512
features = 512
heads = 8
TINY = {"batch": 2, "tokens": 5, "features": 16, "heads": 2}


class Model(nn.Module):
    def __init__(self, tokens, features, heads):
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.ones(features))
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(features, features, bias=False)
        self.value = nn.Linear(features, features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        size = features // heads
        angles = torch.outer(torch.arange(tokens).float(), 500.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosine", angles.cos().repeat(1, 2))
        self.register_buffer("sine", angles.sin().repeat(1, 2))

    def turn(self, x):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cosine + turned * self.sine

    def forward(self, x):
        normal = self.weight * x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5)
        shape = (*x.shape[:2], self.heads, -1)
        q = self.turn(self.query(normal).view(shape).transpose(1, 2))
        k = self.turn(self.key(normal).view(shape).transpose(1, 2))
        v = self.value(normal).view(shape).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [tokens, features, heads]
