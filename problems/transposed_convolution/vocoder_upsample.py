"""HiFi-GAN's upsampling of mel features to samples: leaky ReLU, then a long transposed filter."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 10
inside = 144
outside = 72
frames = 700
TINY = {"batch": 2, "inside": 6, "outside": 4, "frames": 9}


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.up = nn.ConvTranspose1d(inside, outside, 16, stride=8, padding=4)

    def forward(self, x):
        return self.up(F.leaky_relu(x, 0.1))


def get_inputs():
    return [torch.randn(batch, inside, frames)]


def get_init_inputs():
    return [inside, outside]
