"""Entropy of an action distribution, the bonus of policy-gradient training."""

import torch
import torch.nn.functional as F
from torch import nn

states = 400000
actions = 121
TINY = {"states": 6, "actions": 13}


class Model(nn.Module):
    def forward(self, logits):
        log_probability = F.log_softmax(logits, dim=-1)
        return -(log_probability.exp() * log_probability).sum(dim=-1)


def get_inputs():
    return [2.0 * torch.randn(states, actions)]


def get_init_inputs():
    return []
