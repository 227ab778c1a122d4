"""Two linear maps without activation between, scaled twice: they are one linear map."""

import torch
from torch import nn

rows = 3000
inside = 400
middle = 700
outside = 300
TINY = {"rows": 4, "inside": 5, "middle": 7, "outside": 6}


class Model(nn.Module):
    def __init__(self, inside, middle, outside):
        super().__init__()
        self.first = nn.Linear(inside, middle)
        self.second = nn.Linear(middle, outside)

    def forward(self, x):
        y = self.second(self.first(x) * 2.0) * 0.5
        return torch.tanh(y - y.mean(dim=1, keepdim=True))


def get_inputs():
    return [torch.randn(rows, inside)]


def get_init_inputs():
    return [inside, middle, outside]
