"""Autocast inside of the forward: the products in bfloat16, the norm in float32."""

import torch
from torch import nn

tokens = 2048
features = 640
TINY = {"tokens": 4, "features": 8}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = self.layer(x)
        return self.norm(x + y.float())


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features]
