"""Box regression of a detector: a smooth absolute error, weighted by which anchors hold an object."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 24
anchors = 90000
TINY = {"batch": 2, "anchors": 7}


class Model(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, boxes, target, holds):
        error = F.smooth_l1_loss(boxes, target, beta=self.beta, reduction="none").sum(-1)
        return (error * holds).sum() / holds.sum().clamp(min=1.0)


def get_inputs():
    return [torch.randn(batch, anchors, 4), torch.randn(batch, anchors, 4), (torch.rand(batch, anchors) < 0.2).float()]


def get_init_inputs():
    return [0.1]
