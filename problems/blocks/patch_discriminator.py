"""Discriminator of picture translation: strided convolutions, instance norm, leaky ReLU, a map of scores."""

import torch
from torch import nn

batch = 22
size = 128
channels = 32
TINY = {"batch": 1, "size": 32, "channels": 4}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(6, channels, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(channels, 2 * channels, 4, 2, 1), nn.InstanceNorm2d(2 * channels), nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * channels, 4 * channels, 4, 2, 1), nn.InstanceNorm2d(4 * channels), nn.LeakyReLU(0.2, True),
            nn.Conv2d(4 * channels, 1, 4, 1, 1))

    def forward(self, picture, condition):
        return self.layers(torch.cat([picture, condition], dim=1))


def get_inputs():
    return [torch.rand(batch, 3, size, size) * 2 - 1, torch.rand(batch, 3, size, size) * 2 - 1]


def get_init_inputs():
    return [channels]
