"""A vanilla recurrent network whose one layer reads the input and the state side by side, with a read-out each step."""

import torch
from torch import nn

batch = 8
steps = 96
inside = 256
hidden = 192
outside = 64
TINY = {"batch": 2, "steps": 4, "inside": 5, "hidden": 3, "outside": 2}


class Model(nn.Module):
    def __init__(self, inside, hidden, outside):
        super().__init__()
        self.input_to_hidden = nn.Linear(inside + hidden, hidden)
        self.hidden_to_output = nn.Linear(hidden, outside)

    def forward(self, x, hidden):
        outputs = []
        for step in range(x.shape[0]):
            hidden = torch.tanh(self.input_to_hidden(torch.cat((x[step], hidden), dim=1)))
            outputs.append(self.hidden_to_output(hidden))
        return torch.stack(outputs)


def get_inputs():
    return [torch.randn(steps, batch, inside), torch.rand(batch, hidden)]


def get_init_inputs():
    return [inside, hidden, outside]
