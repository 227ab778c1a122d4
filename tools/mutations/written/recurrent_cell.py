"""A recurrent cell, step by step."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, hidden):
        super().__init__()
        self.from_input = nn.Linear(inside, hidden)
        self.from_state = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, state):
        out = torch.empty(x.shape[0], x.shape[1], state.shape[1], dtype=x.dtype, device=x.device)
        for step in range(x.shape[1]):
            fresh = torch.mm(x[:, step], self.from_input.weight.t()) + self.from_input.bias
            state = torch.tanh(fresh + torch.mm(state, self.from_state.weight.t()))
            out[:, step] = state
        return out
