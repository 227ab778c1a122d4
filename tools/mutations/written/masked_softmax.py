"""Softmax of masked scores, a block of rows at a time."""

import torch
from torch import nn

ROWS = 4


class ModelNew(nn.Module):
    def forward(self, scores, valid):
        batch, tokens = scores.shape[0], scores.shape[2]
        out = torch.empty_like(scores)
        for entry in range(batch):
            for start in range(0, tokens, ROWS):
                stop = min(start + ROWS, tokens)
                tile = scores[entry, :, start:stop] * 0.125
                tile = torch.where(valid[entry], tile, -1e9)
                largest = tile.amax(dim=-1, keepdim=True)
                powers = torch.exp(tile - largest)
                out[entry, :, start:stop] = powers / powers.sum(dim=-1, keepdim=True)
        return out
