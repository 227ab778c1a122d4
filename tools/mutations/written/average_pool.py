"""Average pooling by windows whose count leaves the padding out."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)

    def forward(self, x):
        size, step, padding = 3, 2, 1
        batch, channels, height, width = x.shape
        rows = (height + 2 * padding - size + step - 1) // step + 1
        columns = (width + 2 * padding - size + step - 1) // step + 1
        out = torch.empty(batch, channels, rows, columns, dtype=x.dtype, device=x.device)
        for row in range(rows):
            top = row * step - padding
            for column in range(columns):
                left = column * step - padding
                window = x[:, :, max(top, 0):min(top + size, height), max(left, 0):min(left + size, width)]
                count = window.shape[2] * window.shape[3]
                out[:, :, row, column] = window.sum(dim=(2, 3)) / count
        return out * 2.0 - 1.0
