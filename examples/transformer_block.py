"""A transformer's feed-forward block: the products stay with PyTorch; the norm and the GELU may gain."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """LayerNorm, Linear, GELU, Linear, dropout (rate 0), residual."""

    def __init__(self, width, hidden, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        hidden = self.activation(self.expand(self.norm(x)))
        return x + self.dropout(self.contract(hidden))


batch_size, length, features, hidden = 32, 256, 512, 2048
TINY = {"batch_size": 2, "length": 16, "features": 32, "hidden": 64}  # for --tiny


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [features, hidden, 0.0]
