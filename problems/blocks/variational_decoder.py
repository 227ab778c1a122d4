"""From latent numbers to pictures: a linear map, reshaped, two transposed convolutions and a sigmoid."""

import torch
from torch import nn

batch = 700
latent = 96
channels = 64
TINY = {"batch": 2, "latent": 5, "channels": 4}


class Model(nn.Module):
    def __init__(self, latent, channels):
        super().__init__()
        self.channels = channels
        self.start = nn.Linear(latent, channels * 49)
        self.up1 = nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1)
        self.up2 = nn.ConvTranspose2d(channels // 2, 1, 4, stride=2, padding=1)

    def forward(self, z):
        x = torch.relu(self.start(z)).view(-1, self.channels, 7, 7)
        x = torch.relu(self.up1(x))
        return torch.sigmoid(self.up2(x))


def get_inputs():
    return [torch.randn(batch, latent)]


def get_init_inputs():
    return [latent, channels]
