"""A gated layer in half precision throughout, as served language models run."""

import torch
import torch.nn.functional as F
from torch import nn

tokens = 1024
features = 768
hidden = 1536
TINY = {"tokens": 4, "features": 8, "hidden": 12}


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias=False, dtype=torch.float16)
        self.up = nn.Linear(features, hidden, bias=False, dtype=torch.float16)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


def get_inputs():
    return [torch.randn(tokens, features, dtype=torch.float16)]


def get_init_inputs():
    return [features, hidden]
