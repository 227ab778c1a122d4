"""A strided filter bank over a padded signal, frame by frame, then ReLU."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.filters = nn.Conv1d(1, channels, kernel_size=20, stride=10, padding=10)

    def forward(self, wave):
        size, step, padding = 20, 10, 10
        weight = self.filters.weight.flatten(1)
        frames = (wave.shape[2] + 2 * padding - size) // step + 1
        padded = F.pad(wave, (padding, padding))
        out = torch.empty(wave.shape[0], weight.shape[0], frames, dtype=wave.dtype, device=wave.device)
        for frame in range(frames):
            first = frame * step
            out[:, :, frame] = torch.mm(padded[:, 0, first:first + size], weight.t()) + self.filters.bias
        return torch.relu(out)
