"""Layer norm over the channels of a picture, a row of pixels at a time."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)

    def forward(self, x):
        out = torch.empty_like(x)
        for row in range(x.shape[2]):
            line = x[:, :, row]
            mean = line.mean(dim=1, keepdim=True)
            variance = line.var(dim=1, correction=0, keepdim=True)
            normal = (line - mean) / torch.sqrt(variance + 1e-6)
            out[:, :, row] = normal * self.weight[:, None] + self.bias[:, None]
        return out
