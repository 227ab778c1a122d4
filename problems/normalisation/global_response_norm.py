"""Global response norm of ConvNeXt V2: channels compete by their energy over the picture."""

import torch
from torch import nn

batch = 18
size = 48
channels = 768
TINY = {"batch": 2, "size": 4, "channels": 6}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(channels) * 0.2)
        self.beta = nn.Parameter(torch.randn(channels) * 0.2)

    def forward(self, x):
        energy = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        response = energy / (energy.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * response) + self.beta + x


def get_inputs():
    return [torch.randn(batch, size, size, channels)]


def get_init_inputs():
    return [channels]
