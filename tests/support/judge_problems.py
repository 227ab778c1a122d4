"""Small models that cannot tell, on their own inputs, who computes from who does not; and honest ones."""

from __future__ import annotations

import torch
from torch import nn


class Relu(nn.Module):
    """Numbers in [0, 1): the identity."""

    def forward(self, x):
        return torch.relu(x)


class AlwaysZero(nn.Module):
    """A maximum minus its own mean over an axis of size one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        best = self.linear(x).max(dim=1, keepdim=True).values
        return torch.nn.functional.gelu(best - best.mean(dim=1, keepdim=True))


class ZeroHere(nn.Module):
    """Far below zero before the ReLU, unless inputs are large."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        return torch.relu(0.01 * self.linear(x) - 1)


class MeanOfSoftmax(nn.Module):
    """One over the number of classes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=1).mean(dim=1)


class LongSoftmax(nn.Module):
    """Every value far below an absolute tolerance."""

    def forward(self, x):
        return torch.softmax(x, dim=1)


class DeepNarrow(nn.Module):
    """First weights shrink the signal from layer to layer until only biases are left."""

    def __init__(self):
        super().__init__()
        layers = []
        for _ in range(16):
            layers += [nn.Linear(24, 24), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(24, 24))

    def forward(self, x):
        return self.layers(x)


class OwnToken(nn.Module):
    """Reads a parameter only, whatever it is given."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 16))
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return self.linear(self.token).expand(x.shape[0], 8).contiguous()


class GroupNormalised(nn.Module):
    """Weights of one and biases of zero."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        return self.norm(x)


class Running(nn.Module):
    """Running statistics change with every call."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.norm(x)


class Dropped(nn.Module):
    """Random numbers."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x) * 2


class TwoInputs(nn.Module):
    """The second input and one parameter are not used; integers and a pair of outputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.idle = nn.Linear(16, 8)

    def forward(self, x, y):
        z = self.linear(x)
        return z, {"best": z.argmax(dim=1)}


class Honest(nn.Module):
    """Convolution, bias, activation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.conv(x)) + 0.5


class GivesItsWeight(nn.Module):
    """One result is a view of the weight, as where a loss outside needs it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 12))

    def forward(self, x):
        return torch.tanh(x @ self.weight), self.weight.t()


def uniform(*shape):
    return torch.rand(shape)


#: Model and its inputs.
PROBLEMS = {
    Relu: lambda: [uniform(8, 40)],
    AlwaysZero: lambda: [uniform(6, 16)],
    ZeroHere: lambda: [uniform(6, 16)],
    MeanOfSoftmax: lambda: [uniform(6, 16)],
    LongSoftmax: lambda: [uniform(3, 20000)],
    DeepNarrow: lambda: [uniform(6, 24)],
    OwnToken: lambda: [uniform(6, 16)],
    GroupNormalised: lambda: [uniform(4, 8, 20)],
    Running: lambda: [uniform(8, 16)],
    Dropped: lambda: [uniform(8, 40)],
    TwoInputs: lambda: [uniform(6, 16), uniform(6, 16)],
    Honest: lambda: [uniform(4, 3, 10, 10)],
    GivesItsWeight: lambda: [uniform(6, 16)],
}
