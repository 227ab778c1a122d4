"""Instance norm of a volume, sums over slices, then leaky ReLU."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm3d(channels, affine=True)

    def forward(self, x):
        count = x[0, 0].numel()
        total = torch.zeros_like(x[:, :, 0, 0, 0])
        for plane in range(x.shape[2]):
            total = total + x[:, :, plane].sum(dim=(2, 3))
        mean = (total / count)[:, :, None, None, None]
        squares = torch.zeros_like(total)
        for plane in range(x.shape[2]):
            squares = squares + (x[:, :, plane] - mean[:, :, 0]).square().sum(dim=(2, 3))
        variance = (squares / count)[:, :, None, None, None]
        normal = (x - mean) * torch.rsqrt(variance + self.norm.eps)
        normal = normal * self.norm.weight.view(1, -1, 1, 1, 1) + self.norm.bias.view(1, -1, 1, 1, 1)
        return F.leaky_relu(normal, 0.01)
