"""Centring of a teacher's outputs (DINO): a buffer follows their mean while the model trains."""

import torch
from torch import nn

rows = 12000
features = 4096
TINY = {"rows": 5, "features": 8}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("centre", torch.zeros(1, features))

    def forward(self, x):
        result = torch.softmax((x - self.centre) / 0.5, dim=-1)
        if self.training:
            self.centre.mul_(0.9).add_(0.1 * x.mean(dim=0, keepdim=True))
        return result


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
