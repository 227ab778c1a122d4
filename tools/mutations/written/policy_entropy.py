"""Entropy of a softmax from its logarithm."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits):
        largest = logits.amax(dim=-1, keepdim=True)
        shifted = logits - largest
        powers = torch.exp(shifted)
        total = powers.sum(dim=-1, keepdim=True)
        logarithm = shifted - torch.log(total)
        return torch.sum(powers / total * -logarithm, dim=-1)
