"""Token and position embeddings, summed and normalised: the entrance of an encoder."""

import torch
from torch import nn

batch = 64
tokens = 384
vocabulary = 24000
features = 640
TINY = {"batch": 2, "tokens": 5, "vocabulary": 30, "features": 8}


class Model(nn.Module):
    def __init__(self, vocabulary, tokens, features):
        super().__init__()
        self.words = nn.Embedding(vocabulary, features)
        self.places = nn.Embedding(tokens, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, words):
        places = torch.arange(words.shape[1], device=words.device)
        return self.norm(self.words(words) + self.places(places))


def get_inputs():
    return [torch.randint(0, vocabulary, (batch, tokens))]


def get_init_inputs():
    return [vocabulary, tokens, features]
