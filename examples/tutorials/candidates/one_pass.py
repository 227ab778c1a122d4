"""A candidate that is right: the norm's statistics first, then the rest, written out."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x):
        rows = x.reshape(x.shape[0], self.norm.num_groups, -1)
        variance, mean = torch.var_mean(rows, dim=2, keepdim=True, correction=0)
        y = ((rows - mean) * torch.rsqrt(variance + self.norm.eps)).reshape(x.shape)
        y = torch.addcmul(self.norm.bias[:, None, None], y, self.norm.weight[:, None, None])
        gate = torch.sigmoid(torch.addcmul(self.shift, x, self.scale))
        return (y * torch.sigmoid(y) * gate).mean(dim=(2, 3))
