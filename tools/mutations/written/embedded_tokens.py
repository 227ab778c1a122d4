"""Rows of two tables added and normalised, token by token."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, tokens, features):
        super().__init__()
        self.words = nn.Embedding(vocabulary, features)
        self.places = nn.Embedding(tokens, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, words):
        features = self.words.weight.shape[1]
        out = torch.empty(*words.shape, features, device=words.device)
        for token in range(words.shape[1]):
            row = self.words.weight[words[:, token]] + self.places.weight[token]
            mean = row.mean(dim=1, keepdim=True)
            variance = row.var(dim=1, correction=0, keepdim=True)
            normal = (row - mean) * torch.rsqrt(variance + self.norm.eps)
            out[:, token] = normal * self.norm.weight + self.norm.bias
        return out
