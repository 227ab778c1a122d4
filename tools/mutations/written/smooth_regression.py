"""Huber-like loss of boxes, averaged over those that hold something."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, boxes, target, holds):
        gap = torch.abs(boxes - target)
        near = 0.5 * gap * gap / self.beta
        far = gap - 0.5 * self.beta
        error = torch.where(gap < self.beta, near, far).sum(dim=-1)
        return (error * holds).sum() / holds.sum().clamp(min=1.0)
