"""The distance to the nearest centre, centre by centre."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, centres, features):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(centres, features))

    def forward(self, x):
        nearest = torch.full_like(x[:, 0], torch.inf)
        for centre in range(self.centres.shape[0]):
            gap = x - self.centres[centre]
            nearest = torch.minimum(nearest, gap.square().sum(dim=1))
        return torch.sqrt(nearest)
