"""Local response normalisation across neighbouring channels, after the first layers of AlexNet."""

import torch
from torch import nn

batch = 64
channels = 80
size = 55
TINY = {"batch": 2, "channels": 7, "size": 4}


class Model(nn.Module):
    def __init__(self, reach):
        super().__init__()
        self.norm = nn.LocalResponseNorm(reach, alpha=0.01, beta=0.75, k=2.0)

    def forward(self, x):
        return self.norm(torch.relu(x))


def get_inputs():
    return [3.0 * torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [5]
