"""Rows gathered by place, scaled and shifted."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, states, places):
        out = torch.empty(*places.shape, states.shape[-1], dtype=states.dtype, device=states.device)
        entries = torch.arange(states.shape[0], device=states.device)
        for choice in range(places.shape[1]):
            rows = states[entries, places[:, choice]]
            out[:, choice] = rows * self.weight + 1.0
        return out
