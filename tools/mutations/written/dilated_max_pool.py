"""Dilated maximum over samples, tap by tap, of a padded signal."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        size, step, padding, spread = 5, 3, 2, 2
        length = (x.shape[2] + 2 * padding - spread * (size - 1) - 1) // step + 1
        padded = F.pad(torch.abs(x), (padding, padding), value=-torch.inf)
        largest = torch.full_like(x[:, :, :length], -torch.inf)
        for tap in range(size):
            first = tap * spread
            largest = torch.maximum(largest, padded[:, :, first:first + (length - 1) * step + 1:step])
        return torch.log1p(largest)
