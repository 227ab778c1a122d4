"""A log-sum-exp and a mean over an axis that holds one value, left over from a generic head."""

import torch
from torch import nn

rows = 1500
inside = 1000
outside = 800
TINY = {"rows": 4, "inside": 6, "outside": 5}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        best = torch.max(self.linear(x), dim=1, keepdim=True).values
        return torch.logsumexp(best, dim=1, keepdim=True).mean(dim=1) + torch.log(x.square().sum(1) + 1.0)


def get_inputs():
    return [torch.randn(rows, inside)]


def get_init_inputs():
    return [inside, outside]
