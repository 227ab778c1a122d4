"""Patches of a picture to tokens: stride equals kernel, then flattened, moved and given positions."""

import torch
from torch import nn

batch = 32
size = 240
patch = 15
features = 416
TINY = {"batch": 2, "size": 12, "patch": 4, "features": 10}


class Model(nn.Module):
    def __init__(self, size, patch, features):
        super().__init__()
        self.project = nn.Conv2d(3, features, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2, features) * 0.02)

    def forward(self, image):
        return self.project(image).flatten(2).transpose(1, 2) + self.positions


def get_inputs():
    return [torch.rand(batch, 3, size, size) * 2.0 - 1.0]


def get_init_inputs():
    return [size, patch, features]
