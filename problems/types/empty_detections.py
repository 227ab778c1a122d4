"""No detection in this frame: boxes of shape (0, 4) pass through scaling, beside scores that exist."""

import torch
from torch import nn

proposals = 2000000
TINY = {"proposals": 7}


class Model(nn.Module):
    def forward(self, boxes, scores):
        corners = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], dim=1)
        return corners.clamp(0.0, 1.0), torch.sigmoid(scores) * 0.9 + 0.05


def get_inputs():
    return [torch.rand(0, 4), torch.randn(proposals, 8)]


def get_init_inputs():
    return []
