"""Peak signal-to-noise ratio of restored pictures, one figure per picture."""

import torch
from torch import nn

batch = 36
height = 540
width = 960
TINY = {"batch": 3, "height": 8, "width": 9}


class Model(nn.Module):
    def forward(self, restored, original):
        error = ((restored - original) ** 2).mean(dim=[1, 2, 3])
        return -10.0 * torch.log10(error + 1e-8)


def get_inputs():
    original = torch.rand(batch, 3, height, width)
    return [original + 0.05 * torch.randn(batch, 3, height, width), original]


def get_init_inputs():
    return []
