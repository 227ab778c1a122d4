"""A linear layer and an activation: a product on tensor cores, as accurate as float32, with gelu in its epilogue."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """``gelu(x @ weight.T + bias)``."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))


batch_size = 4096
in_features, out_features = 2048, 4096
TINY = {"batch_size": 32, "in_features": 64, "out_features": 128}  # for --tiny


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
