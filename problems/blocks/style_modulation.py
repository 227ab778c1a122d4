"""StyleGAN 2's modulated convolution: weights scaled by a style per sample, then demodulated."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 40
inside = 48
outside = 40
size = 48
style = 128
TINY = {"batch": 2, "inside": 3, "outside": 4, "size": 5, "style": 6}


class Model(nn.Module):
    def __init__(self, inside, outside, style):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, outside, inside, 3, 3))
        self.style = nn.Linear(style, inside)

    def forward(self, x, w):
        batch, _, height, width = x.shape
        weight = self.weight * (self.style(w) + 1.0)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.pow(2).sum(dim=[2, 3, 4], keepdim=True) + 1e-8)
        y = F.conv2d(x.reshape(1, -1, height, width), weight.flatten(0, 1), padding=1, groups=batch)
        return F.leaky_relu(y.view(batch, -1, height, width), 0.2) * 1.4142


def get_inputs():
    return [torch.randn(batch, inside, size, size), torch.randn(batch, style)]


def get_init_inputs():
    return [inside, outside, style]
