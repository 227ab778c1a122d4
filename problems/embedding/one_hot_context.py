"""A small category as one-hot code next to numbers, into the first layer of a tabular network."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 60000
categories = 30
numbers = 98
hidden = 160
TINY = {"rows": 5, "categories": 4, "numbers": 6, "hidden": 7}


class Model(nn.Module):
    def __init__(self, categories, numbers, hidden):
        super().__init__()
        self.categories = categories
        self.layer = nn.Linear(categories + numbers, hidden)

    def forward(self, category, values):
        code = F.one_hot(category, self.categories).float()
        return F.softplus(self.layer(torch.cat([code, values], dim=1)))


def get_inputs():
    return [torch.randint(0, categories, (rows,)), torch.randn(rows, numbers)]


def get_init_inputs():
    return [categories, numbers, hidden]
