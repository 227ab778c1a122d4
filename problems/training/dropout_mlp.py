"""A perceptron with dropout between its layers, in training: draws belong to PyTorch's stream."""

import torch
from torch import nn

rows = 4096
inside = 500
hidden = 900
TINY = {"rows": 5, "inside": 6, "hidden": 12}


class Model(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inside, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, 64))

    def forward(self, x):
        return torch.tanh(self.layers(x))


def get_inputs():
    return [torch.randn(rows, inside)]


def get_init_inputs():
    return [inside, hidden]
