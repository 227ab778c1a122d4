"""A GRU cell called once a step, as decoders and agents have it; all states go into a read-out."""

import torch
from torch import nn

batch = 32
steps = 32
inside = 96
hidden = 160
TINY = {"batch": 2, "steps": 5, "inside": 4, "hidden": 6}


class Model(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.cell = nn.GRUCell(inside, hidden)
        self.head = nn.Linear(hidden, inside)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], self.cell.hidden_size)
        states = []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            states.append(state)
        return self.head(torch.stack(states, dim=1)), state


def get_inputs():
    return [torch.randn(batch, steps, inside)]


def get_init_inputs():
    return [inside, hidden]
