"""Triangle update of protein folding: pairs (i, k) and (j, k) tell the pair (i, j)."""

import torch
from torch import nn

length = 272
features = 64
hidden = 32
TINY = {"length": 5, "features": 6, "hidden": 4}


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.left = nn.Linear(features, 2 * hidden)
        self.right = nn.Linear(features, 2 * hidden)
        self.inner = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, features)

    def forward(self, pairs):
        x = self.norm(pairs)
        a, gate_a = self.left(x).chunk(2, dim=-1)
        b, gate_b = self.right(x).chunk(2, dim=-1)
        mixed = torch.einsum("ikc,jkc->ijc", a * torch.sigmoid(gate_a), b * torch.sigmoid(gate_b))
        return pairs + self.out(self.inner(mixed))


def get_inputs():
    return [torch.randn(length, length, features)]


def get_init_inputs():
    return [features, hidden]
