"""One block applied three times, as recursive networks do, and one parameter under two names."""

import torch
from torch import nn

rows = 3000
features = 448
TINY = {"rows": 4, "features": 6}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(features, features), nn.LayerNorm(features), nn.GELU())
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.same_gain = self.gain

    def forward(self, x):
        for _ in range(3):
            x = x + self.gain * self.block(x)
        return x * self.same_gain


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
