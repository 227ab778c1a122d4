"""Swin's attention within windows, with a learned bias by relative place."""

import torch
from torch import nn

windows = 1100
side = 7
features = 96
heads = 3
TINY = {"windows": 3, "side": 3, "features": 8, "heads": 2}


class Model(nn.Module):
    def __init__(self, side, features, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads) * 0.2)
        place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + side - 1
        self.register_buffer("places", apart[0] * (2 * side - 1) + apart[1])

    def forward(self, x):
        count, tokens, features = x.shape
        q, k, v = self.project(x).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.places.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
        weights = torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(count, tokens, features))


def get_inputs():
    return [torch.randn(windows, side * side, features)]


def get_init_inputs():
    return [side, features, heads]
