"""The self-test's problem: small, with both signs in its inputs and every kind of operation that a control needs."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 0.5 * x


def get_inputs():
    return [torch.randn(48, 64)]


def get_init_inputs():
    return [64]
