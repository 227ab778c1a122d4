"""Leaky neurons that integrate their currents and fire: each step reads the potential of the one before it alone."""

import torch
from torch import nn

batch = 64
steps = 64
inside = 128
hidden = 256
TINY = {"batch": 2, "steps": 5, "inside": 4, "hidden": 3}


class Model(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.currents = nn.Linear(inside, hidden)
        self.decay = nn.Parameter(0.8 + 0.19 * torch.rand(hidden))

    def forward(self, x):
        currents = self.currents(x)
        potential = torch.zeros_like(currents[0])
        spikes = []
        for current in currents:
            potential = self.decay * potential + current
            fires = (potential > 0.25).float()
            potential = potential - fires
            spikes.append(fires)
        return torch.stack(spikes), potential


def get_inputs():
    return [torch.randn(steps, batch, inside)]


def get_init_inputs():
    return [inside, hidden]
