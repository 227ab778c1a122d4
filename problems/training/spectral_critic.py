"""A critic whose weights are divided by their spectral norm, which training refines at every call."""

import torch
import torch.nn.functional as F
from torch import nn

pictures = 32
width = 64
side = 32
TINY = {"pictures": 2, "width": 4, "side": 8}


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow = nn.utils.spectral_norm(nn.Conv2d(3, width, 3, padding=1))
        self.wide = nn.utils.spectral_norm(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1))
        self.score = nn.utils.spectral_norm(nn.Linear(2 * width, 1))

    def forward(self, x):
        h = F.leaky_relu(self.narrow(x), 0.2)
        h = F.leaky_relu(self.wide(h), 0.2)
        return self.score(h.sum((2, 3)))


def get_inputs():
    return [torch.randn(pictures, 3, side, side)]


def get_init_inputs():
    return [width]
