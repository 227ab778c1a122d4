"""A GRU that reads in both directions, and a sigmoid gate over its states."""

import torch
from torch import nn

batch = 64
steps = 72
inside = 64
hidden = 120
TINY = {"batch": 2, "steps": 4, "inside": 5, "hidden": 6}


class Model(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.layer = nn.GRU(inside, hidden, batch_first=True, bidirectional=True)
        self.gate = nn.Linear(2 * hidden, 2 * hidden)

    def forward(self, x, start):
        states, last = self.layer(x, start)
        return states * torch.sigmoid(self.gate(states)), last


def get_inputs():
    return [torch.randn(batch, steps, inside), torch.randn(2, batch, hidden)]


def get_init_inputs():
    return [inside, hidden]
