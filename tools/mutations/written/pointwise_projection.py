"""A 1x1 convolution as one product for each picture, then ReLU6."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.project = nn.Conv2d(inside, outside, 1)

    def forward(self, x):
        weight = self.project.weight.flatten(1)
        out = torch.empty(x.shape[0], weight.shape[0], *x.shape[2:], dtype=x.dtype, device=x.device)
        for entry in range(x.shape[0]):
            product = torch.mm(weight, x[entry].flatten(1)) + self.project.bias[:, None]
            out[entry] = product.clamp(min=0.0, max=6.0).view(out.shape[1:])
        return out
