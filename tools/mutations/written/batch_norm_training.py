"""Batch norm with the batch's statistics, which move the running ones; then SiLU."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, momentum=0.03)

    def forward(self, x):
        norm = self.norm
        if self.training:
            mean = x.mean(dim=(0, 2, 3))
            variance = x.var(dim=(0, 2, 3), correction=0)
            unbiased = x.var(dim=(0, 2, 3), correction=1)
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(unbiased, norm.momentum)
        else:
            mean, variance = norm.running_mean, norm.running_var
        scale = torch.rsqrt(variance + norm.eps) * norm.weight
        shift = norm.bias - mean * scale
        return F.silu(x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1))
