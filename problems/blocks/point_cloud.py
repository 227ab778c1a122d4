"""PointNet: the same small network for every point, then the maximum over the cloud."""

import torch
from torch import nn

batch = 40
points = 1500
hidden = 96
features = 384
TINY = {"batch": 2, "points": 9, "hidden": 4, "features": 6}


class Model(nn.Module):
    def __init__(self, hidden, features):
        super().__init__()
        self.first = nn.Conv1d(3, hidden, 1)
        self.norm1 = nn.BatchNorm1d(hidden)
        self.second = nn.Conv1d(hidden, features, 1)
        self.norm2 = nn.BatchNorm1d(features)

    def forward(self, cloud):
        x = torch.relu(self.norm1(self.first(cloud)))
        x = self.norm2(self.second(x))
        return torch.max(x, 2)[0]


def get_inputs():
    return [torch.randn(batch, 3, points)]


def get_init_inputs():
    return [hidden, features]
