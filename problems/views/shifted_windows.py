"""Swin's cyclic shift and cutting into windows, and the way back."""

import torch
from torch import nn

batch = 16
size = 84
window = 7
channels = 144
TINY = {"batch": 2, "size": 8, "window": 4, "channels": 5}


class Model(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, x):
        batch, height, width, channels = x.shape
        side, shift = self.window, self.window // 2
        x = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
        cut = x.view(batch, height // side, side, width // side, side, channels).permute(0, 1, 3, 2, 4, 5)
        cut = cut.reshape(-1, side * side, channels)
        return cut - cut.mean(dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(batch, size, size, channels)]


def get_init_inputs():
    return [window]
