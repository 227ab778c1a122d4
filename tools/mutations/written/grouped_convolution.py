"""A grouped strided convolution by unfolded windows, batch norm in training, ReLU."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.paths = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        groups = self.paths.groups
        each = x.shape[1] // groups
        weight = self.paths.weight.flatten(1)
        parts = []
        for group in range(groups):
            first = group * each
            windows = F.unfold(x[:, first:first + each], 3, padding=1, stride=2)
            parts.append(torch.matmul(weight[first:first + each], windows))
        rows = (x.shape[2] - 1) // 2 + 1
        y = torch.cat(parts, dim=1).view(x.shape[0], x.shape[1], rows, -1)
        mean, variance = self.norm.running_mean, self.norm.running_var
        if self.training:
            mean = y.mean(dim=(0, 2, 3))
            variance = y.var(dim=(0, 2, 3), correction=0)
            unbiased = y.var(dim=(0, 2, 3), correction=1)
            self.norm.num_batches_tracked.add_(1)
            self.norm.running_mean.lerp_(mean, 0.1)
            self.norm.running_var.lerp_(unbiased, 0.1)
        normal = (y - mean.view(1, -1, 1, 1)) * torch.rsqrt(variance + self.norm.eps).view(1, -1, 1, 1)
        return torch.relu(normal * self.norm.weight.view(1, -1, 1, 1) + self.norm.bias.view(1, -1, 1, 1))
