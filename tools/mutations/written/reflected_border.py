"""Gradient length of a picture with a reflected border."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
        across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
        down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
        return torch.sqrt(across * across + down * down + 1e-6)
