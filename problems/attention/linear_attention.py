"""Linear attention with the feature map elu + 1: keys and values are summed before queries see them."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 4
heads = 8
tokens = 2200
features = 56
TINY = {"batch": 2, "heads": 2, "tokens": 9, "features": 5}


class Model(nn.Module):
    def forward(self, q, k, v):
        q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
        memory = torch.einsum("bhnd,bhne->bhde", k, v)
        scale = 1.0 / torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2))
        return torch.einsum("bhnd,bhde->bhne", q, memory) * scale.unsqueeze(-1)


def get_inputs():
    return [torch.randn(batch, heads, tokens, features) for _ in range(3)]


def get_init_inputs():
    return []
