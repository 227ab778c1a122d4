"""LoRA: a frozen linear layer plus a narrow detour of rank sixteen."""

import torch
from torch import nn

tokens = 1800
inside = 1200
outside = 1000
rank = 16
TINY = {"tokens": 5, "inside": 9, "outside": 8, "rank": 2}


class Model(nn.Module):
    def __init__(self, inside, outside, rank):
        super().__init__()
        self.base = nn.Linear(inside, outside)
        self.down = nn.Linear(inside, rank, bias=False)
        self.up = nn.Linear(rank, outside, bias=False)
        self.scale = 2.0

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


def get_inputs():
    return [torch.randn(tokens, inside)]


def get_init_inputs():
    return [inside, outside, rank]
