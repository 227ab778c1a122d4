"""A small convolution network: the statistics, the norm, the ReLU and the pool fuse around the convolution."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Twice: convolution, batch norm, ReLU, max pool; then a linear classifier."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * channels)
        self.pool = nn.MaxPool2d(2)
        self.classify = nn.Linear(2 * channels, classes)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = self.pool(torch.relu(self.norm2(self.conv2(x))))
        return self.classify(x.mean(dim=(2, 3)))


batch_size, size = 32, 128
TINY = {"batch_size": 2, "size": 32}  # for --tiny


def get_inputs():
    return [torch.rand(batch_size, 3, size, size)]


def get_init_inputs():
    return [32, 10]
