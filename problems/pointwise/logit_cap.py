"""Soft capping of logits as in Gemma 2: cap * tanh(logits / cap), with a temperature."""

import torch
from torch import nn

tokens = 600
vocabulary = 64000
TINY = {"tokens": 4, "vocabulary": 90}


class Model(nn.Module):
    def __init__(self, cap, temperature):
        super().__init__()
        self.cap = cap
        self.temperature = temperature

    def forward(self, logits):
        return self.cap * torch.tanh(logits / self.cap) / self.temperature


def get_inputs():
    return [20.0 * torch.randn(tokens, vocabulary)]


def get_init_inputs():
    return [30.0, 0.8]
