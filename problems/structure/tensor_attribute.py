"""A constant tensor kept as a plain attribute, and settings from a dictionary."""

import torch
from torch import nn

rows = 6000
features = 3000
TINY = {"rows": 3, "features": 8}


class Model(nn.Module):
    def __init__(self, features, options):
        super().__init__()
        self.weights = torch.linspace(0.1, 1.0, features)
        self.options = options

    def forward(self, x):
        y = x * self.weights.to(x.device) + self.options["shift"]
        return torch.relu(y) if self.options["activate"] else y


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features, {"shift": 0.25, "activate": True}]
