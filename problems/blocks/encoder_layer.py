"""PyTorch's own transformer encoder layer, pre-norm, without dropout."""

import torch
from torch import nn

batch = 6
tokens = 192
features = 320
heads = 5
TINY = {"batch": 2, "tokens": 5, "features": 8, "heads": 2}


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(features, heads, 3 * features, dropout=0.0, activation="gelu",
                                                batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [features, heads]
