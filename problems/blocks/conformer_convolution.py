"""Convolution module of a Conformer: layer norm, gated linear unit, depthwise filter in time, swish."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 56
frames = 400
features = 144
TINY = {"batch": 2, "frames": 9, "features": 6}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.widen = nn.Conv1d(features, 2 * features, 1)
        self.filter = nn.Conv1d(features, features, 15, padding=7, groups=features)
        self.batch_norm = nn.BatchNorm1d(features)
        self.out = nn.Conv1d(features, features, 1)

    def forward(self, x):
        y = F.glu(self.widen(self.norm(x).transpose(1, 2)), dim=1)
        y = self.out(F.silu(self.batch_norm(self.filter(y))))
        return x + y.transpose(1, 2)


def get_inputs():
    return [torch.randn(batch, frames, features)]


def get_init_inputs():
    return [features]
