"""Mean and deviation of every feature map, which style transfer compares."""

import torch
from torch import nn

batch = 20
channels = 160
height = 120
width = 136
TINY = {"batch": 2, "channels": 5, "height": 6, "width": 7}


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3)), (x.var(dim=(2, 3), unbiased=False) + 1e-5).sqrt()


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
