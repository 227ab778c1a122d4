"""Discounted sums from the end of each episode."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, discount):
        super().__init__()
        self.discount = discount

    def forward(self, rewards):
        steps = rewards.shape[1]
        out = torch.empty_like(rewards)
        carry = torch.zeros_like(rewards[:, 0])
        for step in range(steps):
            place = steps - 1 - step
            carry = rewards[:, place] + self.discount * carry
            out[:, place] = carry
        return out
