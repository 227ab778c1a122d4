"""A hook keeps what a layer gives, and the forward uses it at its end, as feature extractors do."""

import torch
from torch import nn

rows = 4096
features = 512
TINY = {"rows": 4, "features": 8}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, features), nn.SiLU(), nn.Linear(features, features))
        self.kept = {}
        self.body[1].register_forward_hook(self.keep)

    def keep(self, module, arguments, output):
        self.kept["middle"] = output

    def forward(self, x):
        y = self.body(x)
        return torch.tanh(y + self.kept["middle"].mean(-1, keepdim=True))


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
