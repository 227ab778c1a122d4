"""The mean of everything seen so far, at every step of a long series."""

import torch
from torch import nn

series = 3000
steps = 12000
TINY = {"series": 3, "steps": 20}


class Model(nn.Module):
    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return torch.cumsum(x, dim=1) / count


def get_inputs():
    return [torch.randn(series, steps)]


def get_init_inputs():
    return []
