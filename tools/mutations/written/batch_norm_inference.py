"""Batch norm by running statistics folded into one scale and shift, then ReLU."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.eval()

    def forward(self, x):
        out = torch.empty_like(x)
        for channel in range(x.shape[1]):
            plane = x[:, channel]
            if self.training:
                mean, variance = plane.mean(), plane.var(correction=0)
            else:
                mean, variance = self.norm.running_mean[channel], self.norm.running_var[channel]
            scale = torch.rsqrt(variance + self.norm.eps) * self.norm.weight[channel]
            out[:, channel] = torch.relu((plane - mean) * scale + self.norm.bias[channel])
        return out
