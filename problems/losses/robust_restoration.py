"""Charbonnier loss of super-resolution, with a penalty on rough edges (total variation)."""

import torch
from torch import nn

batch = 16
size = 448
TINY = {"batch": 2, "size": 7}


class Model(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, restored, original):
        error = torch.sqrt((restored - original) ** 2 + 1e-6).mean()
        across = (restored[..., :, 1:] - restored[..., :, :-1]).abs().mean()
        down = (restored[..., 1:, :] - restored[..., :-1, :]).abs().mean()
        return error + self.weight * (across + down)


def get_inputs():
    return [torch.rand(batch, 3, size, size), torch.rand(batch, 3, size, size)]


def get_init_inputs():
    return [0.05]
