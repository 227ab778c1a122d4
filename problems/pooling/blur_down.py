"""Anti-aliased downsampling: reflection at the border, a binomial filter per channel, every second pixel."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 16
channels = 96
size = 112
TINY = {"batch": 2, "channels": 3, "size": 8}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        line = torch.tensor([1.0, 3.0, 3.0, 1.0])
        square = line[:, None] * line[None, :]
        self.register_buffer("filter", (square / square.sum()).repeat(channels, 1, 1, 1))

    def forward(self, x):
        x = F.pad(x, (1, 2, 1, 2), mode="reflect")
        return F.conv2d(x, self.filter, stride=2, groups=x.shape[1])


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
