"""Two sources written side by side through a ReLU."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, skip, up):
        first = skip.shape[1]
        out = torch.empty(skip.shape[0], first + up.shape[1], *skip.shape[2:], dtype=skip.dtype, device=skip.device)
        for channel in range(first):
            out[:, channel] = torch.relu(skip[:, channel]) - 0.1
        for channel in range(up.shape[1]):
            out[:, first + channel] = torch.relu(up[:, channel] * 1.5) - 0.1
        return out
