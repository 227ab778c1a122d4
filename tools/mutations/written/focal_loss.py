"""Focal loss from a stable binary cross-entropy."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits, target):
        probability = torch.sigmoid(logits)
        entropy = torch.relu(logits) - logits * target + torch.log1p(torch.exp(-torch.abs(logits)))
        right = probability * target + (1 - probability) * (1 - target)
        weight = self.alpha * target + (1 - self.alpha) * (1 - target)
        return (weight * (1 - right) ** self.gamma * entropy).mean()
