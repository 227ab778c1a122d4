"""One step of a translation decoder: attention over the source, then a GRU cell."""

import torch
from torch import nn

batch = 1800
source = 50
hidden = 256
TINY = {"batch": 2, "source": 4, "hidden": 6}


class Model(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.cell = nn.GRUCell(2 * hidden, hidden)

    def forward(self, word, state, memory):
        scores = torch.bmm(memory, self.query(state).unsqueeze(2)).squeeze(2)
        context = torch.bmm(torch.softmax(scores, dim=1).unsqueeze(1), memory).squeeze(1)
        return self.cell(torch.cat([word, context], dim=1), state)


def get_inputs():
    return [torch.randn(batch, hidden), torch.randn(batch, hidden), torch.randn(batch, source, hidden)]


def get_init_inputs():
    return [hidden]
