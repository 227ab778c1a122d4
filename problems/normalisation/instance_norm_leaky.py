"""Instance norm and a leaky ReLU, as in nnU-Net's stages for volumes."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 2
channels = 40
depth = 56
size = 96
TINY = {"batch": 2, "channels": 3, "depth": 4, "size": 5}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm3d(channels, affine=True)

    def forward(self, x):
        return F.leaky_relu(self.norm(x), 0.01)


def get_inputs():
    return [torch.randn(batch, channels, depth, size, size)]


def get_init_inputs():
    return [channels]
