"""A user as the mean of the items in a basket: an embedding bag, then a hidden layer."""

import torch
from torch import nn

users = 40000
basket = 24
items = 100000
features = 64
TINY = {"users": 3, "basket": 4, "items": 20, "features": 6}


class Model(nn.Module):
    def __init__(self, items, features):
        super().__init__()
        self.items = nn.EmbeddingBag(items, features, mode="mean")
        self.hidden = nn.Linear(features, features)

    def forward(self, baskets):
        return torch.relu(self.hidden(self.items(baskets)))


def get_inputs():
    return [torch.randint(0, items, (users, basket))]


def get_init_inputs():
    return [items, features]
