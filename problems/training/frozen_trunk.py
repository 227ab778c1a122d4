"""Fine-tuning with a frozen batch norm below a training one: both modes within one model."""

import torch
from torch import nn

batch = 16
channels = 64
size = 40
TINY = {"batch": 3, "channels": 4, "size": 5}


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.frozen = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)
        self.learning = nn.BatchNorm2d(channels)
        self.frozen.running_var.uniform_(0.5, 1.5)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        return torch.relu(self.learning(self.second(torch.relu(self.frozen(self.first(x))))))


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
