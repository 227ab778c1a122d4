"""MLP-Mixer: one perceptron across tokens, one across features, both with layer norm and residual."""

import torch
from torch import nn

batch = 52
tokens = 144
features = 240
TINY = {"batch": 2, "tokens": 5, "features": 6}


class Model(nn.Module):
    def __init__(self, tokens, features):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.features = nn.Sequential(nn.Linear(features, 2 * features), nn.GELU(), nn.Linear(2 * features, features))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.norm2(x))


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [tokens, features]
