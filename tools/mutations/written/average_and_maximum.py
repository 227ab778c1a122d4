"""Mean and maximum of each channel in one pass over its rows."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[:, :, 0, 0])
        largest = torch.full_like(total, -torch.inf)
        for row in range(x.shape[2]):
            line = x[:, :, row]
            total = total + line.sum(dim=2)
            largest = torch.maximum(largest, line.amax(dim=2))
        mean = total / (x.shape[2] * x.shape[3])
        return torch.sigmoid(mean + largest)
