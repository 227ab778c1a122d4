"""Two LSTM layers over a sequence; the last state goes into a linear read-out."""

import torch
from torch import nn

batch = 24
steps = 60
inside = 80
hidden = 200
TINY = {"batch": 2, "steps": 5, "inside": 6, "hidden": 8}


class Model(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.layers = nn.LSTM(inside, hidden, num_layers=2, batch_first=True)
        self.read = nn.Linear(hidden, 10)

    def forward(self, x):
        states, _ = self.layers(x)
        return self.read(states[:, -1])


def get_inputs():
    return [torch.randn(batch, steps, inside)]


def get_init_inputs():
    return [inside, hidden]
