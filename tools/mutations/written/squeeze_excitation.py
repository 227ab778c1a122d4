"""Channels weighted by a small network of their means."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down = nn.Linear(channels, channels // 4)
        self.up = nn.Linear(channels // 4, channels)

    def forward(self, x):
        summary = x.mean(dim=(2, 3))
        hidden = torch.relu(torch.mm(summary, self.down.weight.t()) + self.down.bias)
        weight = torch.sigmoid(torch.mm(hidden, self.up.weight.t()) + self.up.bias)
        out = torch.empty_like(x)
        for channel in range(x.shape[1]):
            out[:, channel] = x[:, channel] * weight[:, channel, None, None]
        return out
