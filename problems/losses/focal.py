"""Focal loss of an object detector: easy background counts little."""

import torch
import torch.nn.functional as F
from torch import nn

anchors = 120000
classes = 80
TINY = {"anchors": 6, "classes": 4}


class Model(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits, target):
        probability = torch.sigmoid(logits)
        entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        right = probability * target + (1 - probability) * (1 - target)
        weight = self.alpha * target + (1 - self.alpha) * (1 - target)
        return (weight * (1 - right) ** self.gamma * entropy).mean()


def get_inputs():
    return [torch.randn(anchors, classes), (torch.rand(anchors, classes) < 0.1).float()]


def get_init_inputs():
    return [0.25, 2.0]
