"""A strided transposed convolution, a scale and two global means: one pass over the input is enough."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Transposed convolution with stride 2, times a constant, mean over space, and the mean again."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, multiplier):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )
        self.multiplier = multiplier

    def forward(self, x):
        x = self.conv_transpose(x)
        x = x * self.multiplier
        x = torch.mean(x, dim=[2, 3], keepdim=True)
        return torch.mean(x, dim=[2, 3], keepdim=True)


batch_size = 16
in_channels, out_channels = 64, 128
height, width = 128, 128
TINY = {"batch_size": 2, "in_channels": 8, "out_channels": 8, "height": 16, "width": 16}  # for --tiny


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, 3, 2, 1, 1, 0.5]
