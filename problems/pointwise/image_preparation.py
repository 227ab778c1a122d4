"""Preparing photographs for a classifier: gamma, channel-wise standardisation and clipping."""

import torch
from torch import nn

batch = 48
height = 480
width = 640
TINY = {"batch": 2, "height": 9, "width": 11}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, image):
        linear = image.clamp(0.01, 1.0).pow(1.0 / 2.2)
        return ((linear - self.mean) / self.deviation).clamp(-2.0, 2.0)


def get_inputs():
    return [torch.rand(batch, 3, height, width)]


def get_init_inputs():
    return []
