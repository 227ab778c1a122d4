"""The gate of a SwiGLU layer on one fused projection: split in halves, SiLU of one times the other."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 6
tokens = 1280
hidden = 5632
TINY = {"batch": 2, "tokens": 5, "hidden": 12}


class Model(nn.Module):
    def forward(self, projected):
        gate, value = projected.chunk(2, dim=-1)
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(batch, tokens, 2 * hidden)]


def get_init_inputs():
    return []
