"""Group norm one group at a time, then SiLU."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        out = torch.empty_like(x)
        each = x.shape[1] // self.norm.num_groups
        for group in range(self.norm.num_groups):
            first = group * each
            part = x[:, first:first + each]
            mean = part.mean(dim=(1, 2, 3), keepdim=True)
            variance = part.var(dim=(1, 2, 3), correction=0, keepdim=True)
            normal = (part - mean) / torch.sqrt(variance + self.norm.eps)
            weight = self.norm.weight[first:first + each].view(1, -1, 1, 1)
            bias = self.norm.bias[first:first + each].view(1, -1, 1, 1)
            out[:, first:first + each] = F.silu(normal * weight + bias)
        return out
