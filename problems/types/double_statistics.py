"""Skewness and kurtosis of measurements in double precision, as scientific codes want them."""

import torch
from torch import nn

series = 800
steps = 40000
TINY = {"series": 3, "steps": 40}


class Model(nn.Module):
    def forward(self, x):
        centred = x - x.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1)
        skewness = centred.pow(3).mean(dim=1) / variance.pow(1.5)
        kurtosis = centred.pow(4).mean(dim=1) / variance.square() - 3.0
        return skewness, kurtosis


def get_inputs():
    return [torch.randn(series, steps, dtype=torch.float64)]


def get_init_inputs():
    return []
