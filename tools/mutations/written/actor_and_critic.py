"""Two heads of one trunk: log-probabilities and a value."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, observation, hidden, actions):
        super().__init__()
        self.trunk = nn.Linear(observation, hidden)
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, x):
        hidden = torch.tanh(torch.mm(x, self.trunk.weight.t()) + self.trunk.bias)
        scores = torch.mm(hidden, self.actor.weight.t()) + self.actor.bias
        largest = scores.amax(dim=1, keepdim=True)
        shifted = scores - largest
        logarithm = shifted - torch.log(torch.exp(shifted).sum(dim=1, keepdim=True))
        value = torch.mm(hidden, self.critic.weight.t()) + self.critic.bias
        return logarithm, value[:, 0]
