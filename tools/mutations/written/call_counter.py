"""Division by the largest magnitude seen in any call, and a count of calls."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        self.calls.add_(1)
        self.largest.copy_(torch.maximum(self.largest, torch.abs(x).amax()))
        return x / self.largest
