"""The highest value of a price series so far and the fall from it (draw-down)."""

import torch
from torch import nn

series = 5000
days = 5000
TINY = {"series": 3, "days": 15}


class Model(nn.Module):
    def forward(self, price):
        highest, _ = torch.cummax(price, dim=1)
        return (price - highest) / highest


def get_inputs():
    return [torch.exp(0.05 * torch.randn(series, days))]


def get_init_inputs():
    return []
