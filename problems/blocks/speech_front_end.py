"""Log-mel features from frames: window, real transform as a product, power, mel filters, logarithm."""

import torch
from torch import nn

batch = 48
frames = 300
frame = 400
filters = 80
TINY = {"batch": 2, "frames": 5, "frame": 16, "filters": 4}


class Model(nn.Module):
    def __init__(self, frame, filters):
        super().__init__()
        angles = torch.outer(torch.arange(frame).float(), torch.arange(frame // 2 + 1).float())
        angles = angles * (6.283185307 / frame)
        self.register_buffer("window", torch.hann_window(frame))
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())
        self.register_buffer("mel", torch.rand(frame // 2 + 1, filters))

    def forward(self, wave):
        x = (wave - wave.mean(dim=-1, keepdim=True)) * self.window
        power = (x @ self.cosine).square() + (x @ self.sine).square()
        features = torch.log(torch.clamp(power @ self.mel, min=1e-6))
        return features - features.mean(dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(batch, frames, frame)]


def get_init_inputs():
    return [frame, filters]
