"""ModelNew: convt_global_mean, unchanged: no kernel pays. Written by kernelwright 0.1.0 for NVIDIA H200.
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Transposed convolution with stride 2, times a constant, mean over space, and the mean again."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, multiplier):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )
        self.multiplier = multiplier

    def _original_forward(self, x):
        x = self.conv_transpose(x)
        x = x * self.multiplier
        x = torch.mean(x, dim=[2, 3], keepdim=True)
        return torch.mean(x, dim=[2, 3], keepdim=True)

    # Nothing pays here: the original computation is the result.
    forward = _original_forward
