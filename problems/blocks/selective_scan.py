"""Mamba's selective scan in plain PyTorch, a loop over time with a state per channel."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 24
steps = 24
channels = 512
states = 16
TINY = {"batch": 2, "steps": 4, "channels": 5, "states": 3}


class Model(nn.Module):
    def __init__(self, channels, states):
        super().__init__()
        self.log_decay = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(channels, 1))
        self.direct = nn.Parameter(torch.randn(channels))

    def forward(self, x, step, enter, leave):
        step = F.softplus(step)
        decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.log_decay))
        drive = (step * x).unsqueeze(-1) * enter.unsqueeze(2)
        state = torch.zeros_like(drive[:, 0])
        outputs = []
        for time in range(x.shape[1]):
            state = decay[:, time] * state + drive[:, time]
            outputs.append((state * leave[:, time].unsqueeze(1)).sum(-1))
        return torch.stack(outputs, dim=1) + x * self.direct


def get_inputs():
    return [torch.randn(batch, steps, channels), torch.randn(batch, steps, channels) - 1.0,
            torch.randn(batch, steps, states), torch.randn(batch, steps, states)]


def get_init_inputs():
    return [channels, states]
