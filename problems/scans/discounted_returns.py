"""Discounted sums of future rewards, by a cumulative sum from the end of the episode."""

import torch
from torch import nn

episodes = 20000
steps = 500
TINY = {"episodes": 3, "steps": 12}


class Model(nn.Module):
    def __init__(self, discount):
        super().__init__()
        self.discount = discount

    def forward(self, rewards):
        place = torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)
        weight = self.discount**place
        future = (rewards * weight).flip(1).cumsum(1).flip(1)
        return future / weight


def get_inputs():
    return [torch.rand(episodes, steps)]


def get_init_inputs():
    return [0.995]
