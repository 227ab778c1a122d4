"""Softmax over classes and its maximum, a row of pixels at a time."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits):
        out = torch.empty_like(logits)
        best = torch.empty_like(logits[:, 0])
        for row in range(logits.shape[2]):
            line = logits[:, :, row]
            largest = line.amax(dim=1, keepdim=True)
            powers = torch.exp(line - largest)
            share = powers / powers.sum(dim=1, keepdim=True)
            out[:, :, row] = share
            best[:, row] = share.amax(dim=1)
        return out, best
