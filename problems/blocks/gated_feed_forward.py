"""Pre-norm SwiGLU feed-forward layer of a Llama-like decoder, with its residual."""

import torch
import torch.nn.functional as F
from torch import nn

tokens = 1100
features = 512
hidden = 1376
TINY = {"tokens": 4, "features": 8, "hidden": 10}


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(features))
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features, hidden]
