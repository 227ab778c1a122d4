"""Channels dealt out, batch norm of each in training, ReLU."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.groups = groups
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        channels = x.shape[1]
        each = channels // self.groups
        out = torch.empty_like(x)
        for channel in range(channels):
            source = (channel % self.groups) * each + channel // self.groups
            plane = x[:, source]
            mean, variance = self.norm.running_mean[channel], self.norm.running_var[channel]
            if self.training:
                mean = plane.mean(dim=(0, 1, 2))
                variance = plane.var(dim=(0, 1, 2), correction=0)
                unbiased = plane.var(dim=(0, 1, 2), correction=1)
                self.norm.running_mean[channel].lerp_(mean, 0.1)
                self.norm.running_var[channel].lerp_(unbiased, 0.1)
            normal = (plane - mean) * torch.rsqrt(variance + self.norm.eps)
            out[:, channel] = torch.relu(normal * self.norm.weight[channel] + self.norm.bias[channel])
        if self.training:
            self.norm.num_batches_tracked.add_(1)
        return out
