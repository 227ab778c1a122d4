"""A reinforcement-learning network with two heads: several outputs that share a trunk."""

import torch
from torch import nn

batch = 50000
observation = 120
hidden = 384
actions = 18
TINY = {"batch": 3, "observation": 5, "hidden": 8, "actions": 4}


class Model(nn.Module):
    def __init__(self, observation, hidden, actions):
        super().__init__()
        self.trunk = nn.Linear(observation, hidden)
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        return torch.log_softmax(self.actor(hidden), dim=-1), self.critic(hidden).squeeze(-1)


def get_inputs():
    return [torch.randn(batch, observation)]


def get_init_inputs():
    return [observation, hidden, actions]
