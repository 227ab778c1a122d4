"""A small mixture of experts computed densely: every expert for every token, weighted by the gate."""

import torch
import torch.nn.functional as F
from torch import nn

tokens = 1500
features = 192
hidden = 320
experts = 6
TINY = {"tokens": 4, "features": 6, "hidden": 7, "experts": 3}


class Model(nn.Module):
    def __init__(self, features, hidden, experts):
        super().__init__()
        self.gate = nn.Linear(features, experts)
        self.up = nn.Parameter(torch.randn(experts, features, hidden) * features**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, features) * hidden**-0.5)

    def forward(self, x):
        weights = torch.softmax(self.gate(x), dim=-1)
        inner = F.gelu(torch.einsum("td,edh->eth", x, self.up), approximate="tanh")
        outer = torch.bmm(inner, self.down)
        return torch.einsum("etd,te->td", outer, weights)


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features, hidden, experts]
