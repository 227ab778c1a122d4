"""A transposed convolution that scatters tap by tap, then a clamp."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.up = nn.ConvTranspose2d(inside, 3, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        weight, size, step, padding, extra = self.up.weight, 3, 2, 1, 1
        batch, _, height, width = x.shape
        rows, columns = (height - 1) * step + size + extra, (width - 1) * step + size + extra
        whole = torch.zeros(batch, weight.shape[1], rows, columns, dtype=x.dtype, device=x.device)
        for row in range(size):
            for column in range(size):
                part = torch.einsum("bihw,io->bohw", x, weight[:, :, row, column])
                bottom, right = row + (height - 1) * step + 1, column + (width - 1) * step + 1
                whole[:, :, row:bottom:step, column:right:step] += part
        kept = whole[:, :, padding:rows - padding, padding:columns - padding]
        return (kept + self.up.bias.view(1, -1, 1, 1)).clamp(min=-1.0, max=1.0)
