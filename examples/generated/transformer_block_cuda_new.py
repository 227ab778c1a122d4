"""ModelNew: transformer_block, unchanged: no kernel pays. Written by kernelwright 0.1.0 for NVIDIA H200.
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """LayerNorm, Linear, GELU, Linear, dropout (rate 0), residual."""

    def __init__(self, width, hidden, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def _original_forward(self, x):
        hidden = self.activation(self.expand(self.norm(x)))
        return x + self.dropout(self.contract(hidden))

    # Nothing pays here: the original computation is the result.
    forward = _original_forward
