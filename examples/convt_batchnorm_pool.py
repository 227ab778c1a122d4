"""A 3-D transposed convolution, a batch norm and a global pool: only two moments of the output are needed."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Transposed convolution, scale, batch norm (training: batch statistics), global average pool."""

    def __init__(self, in_channels, out_channels, kernel_size, scale_factor):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor
        self.batch_norm = nn.BatchNorm3d(out_channels)
        self.pool = nn.AdaptiveAvgPool3d((1, 1, 1))

    def forward(self, x):
        x = self.conv_transpose(x)
        x = x * self.scale_factor
        x = self.batch_norm(x)
        return self.pool(x)


batch_size = 16
in_channels, out_channels, kernel_size = 64, 128, 5
depth, height, width = 16, 32, 32
TINY = {"batch_size": 2, "in_channels": 8, "out_channels": 8, "depth": 4, "height": 8, "width": 8}  # for --tiny


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, 2.0]
