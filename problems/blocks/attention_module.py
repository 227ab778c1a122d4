"""CBAM: channels weighted by their mean and maximum, then places by theirs."""

import torch
from torch import nn

batch = 16
channels = 128
size = 56
TINY = {"batch": 2, "channels": 8, "size": 7}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.channel = nn.Sequential(nn.Linear(channels, channels // 8), nn.ReLU(), nn.Linear(channels // 8, channels))
        self.place = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x):
        weight = self.channel(x.mean((2, 3))) + self.channel(x.amax((2, 3)))
        x = x * torch.sigmoid(weight)[..., None, None]
        summary = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)
        return x * torch.sigmoid(self.place(summary))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
