"""A small LSTM language model: embedding, LSTM, and the decoder tied to the embedding."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 56
steps = 35
vocabulary = 4000
features = 200
TINY = {"batch": 2, "steps": 4, "vocabulary": 12, "features": 6}


class Model(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.words = nn.Embedding(vocabulary, features)
        self.lstm = nn.LSTM(features, features, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, words):
        states, (hidden, cell) = self.lstm(self.words(words))
        logits = F.linear(states, self.words.weight, self.bias)
        return F.log_softmax(logits, dim=-1), hidden, cell


def get_inputs():
    return [torch.randint(0, vocabulary, (batch, steps))]


def get_init_inputs():
    return [vocabulary, features]
