"""A transposed convolution whose output is averaged at once: the convolution collapses to sums of its input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Transposed convolution, global mean, bias, log-sum-exp over channels, sum, scale."""

    def __init__(self, in_channels, out_channels, kernel_size, bias_shape):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = self.conv_transpose(x)
        x = torch.mean(x, dim=(2, 3), keepdim=True)
        x = x + self.bias
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = torch.sum(x, dim=(2, 3))
        return x * 10.0


batch_size = 16
in_channels, out_channels, kernel_size = 64, 128, 3
height, width = 512, 512
bias_shape = (out_channels, 1, 1)
TINY = {"batch_size": 2, "height": 16, "width": 16}  # for --tiny


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, bias_shape]
