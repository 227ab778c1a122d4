"""Codebook learned by moving averages: each call moves every code towards the vectors that chose it."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 16384
codes = 512
features = 64
TINY = {"rows": 20, "codes": 5, "features": 4}


class Model(nn.Module):
    def __init__(self, codes, features, decay):
        super().__init__()
        self.decay = decay
        book = torch.randn(codes, features)
        self.register_buffer("book", book)
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", book.clone())

    def forward(self, x):
        distance = x.square().sum(1, keepdim=True) - 2 * x @ self.book.t() + self.book.square().sum(1)
        place = distance.argmin(1)
        chosen = F.embedding(place, self.book)
        if self.training:
            members = F.one_hot(place, self.book.shape[0]).type(x.dtype)
            self.counts.data.mul_(self.decay).add_(members.sum(0), alpha=1 - self.decay)
            self.sums.data.mul_(self.decay).add_(members.t() @ x, alpha=1 - self.decay)
            self.book.data.copy_(self.sums / self.counts.clamp(min=1e-5).unsqueeze(1))
        return chosen, (chosen - x).square().mean()


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [codes, features, 0.9]
