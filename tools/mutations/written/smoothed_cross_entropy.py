"""Cross-entropy with smoothed labels from a log-sum-exp."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, labels):
        largest = logits.amax(dim=1, keepdim=True)
        shifted = logits - largest
        log_probability = shifted - torch.log(torch.exp(shifted).sum(dim=1, keepdim=True))
        hit = -log_probability.gather(1, labels[:, None])[:, 0]
        spread = -log_probability.mean(dim=1)
        loss = (1.0 - self.smoothing) * hit + self.smoothing * spread
        return loss.mean(dim=0)
