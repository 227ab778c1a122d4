"""Gate of a mixture of experts: top two of eight experts per token, and the loss that spreads the load."""

import torch
from torch import nn

tokens = 72000
features = 512
experts = 8
TINY = {"tokens": 6, "features": 8, "experts": 4}


class Model(nn.Module):
    def __init__(self, features, experts):
        super().__init__()
        self.gate = nn.Linear(features, experts, bias=False)

    def forward(self, x):
        probability = torch.softmax(self.gate(x), dim=-1)
        weight, expert = torch.topk(probability, 2, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        load = torch.nn.functional.one_hot(expert[:, 0], probability.shape[-1]).float().mean(0)
        return weight, expert, (load * probability.mean(0)).sum() * probability.shape[-1]


def get_inputs():
    return [2.0 * torch.randn(tokens, features)]


def get_init_inputs():
    return [features, experts]
