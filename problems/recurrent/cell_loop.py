"""A recurrent cell written out and unrolled over twelve steps, as teaching code and controllers have it."""

import torch
from torch import nn

batch = 3000
steps = 12
inside = 96
hidden = 224
TINY = {"batch": 2, "steps": 3, "inside": 4, "hidden": 5}


class Model(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.from_input = nn.Linear(inside, hidden)
        self.from_state = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, state):
        outputs = []
        for step in range(x.shape[1]):
            state = torch.tanh(self.from_input(x[:, step]) + self.from_state(state))
            outputs.append(state)
        return torch.stack(outputs, dim=1)


def get_inputs():
    return [torch.randn(batch, steps, inside), torch.zeros(batch, hidden)]


def get_init_inputs():
    return [inside, hidden]
