"""Bilinear scores of head and tail entities under many relations, as knowledge-graph models take them."""

import torch
from torch import nn

pairs = 5000
relations = 24
features = 144
TINY = {"pairs": 4, "relations": 3, "features": 7}


class Model(nn.Module):
    def __init__(self, relations, features):
        super().__init__()
        self.forms = nn.Parameter(torch.randn(relations, features, features) / features)

    def forward(self, head, tail):
        return torch.einsum("ni,rij,nj->nr", head, self.forms, tail)


def get_inputs():
    return [torch.randn(pairs, features), torch.randn(pairs, features)]


def get_init_inputs():
    return [relations, features]
