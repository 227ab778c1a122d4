"""A candidate that computes in bfloat16."""

import torch
from torch import nn
from torch.nn import functional as F


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            x = x.to(torch.bfloat16)
            gate = torch.sigmoid(x * self.scale.to(x.dtype) + self.shift.to(x.dtype))
            return (F.silu(self.norm(x)).to(x.dtype) * gate).mean(dim=(2, 3)).float()
