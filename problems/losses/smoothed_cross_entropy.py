"""Cross-entropy with label smoothing, the loss of picture classifiers."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 32000
classes = 1000
TINY = {"rows": 5, "classes": 9}


class Model(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels, label_smoothing=self.smoothing)


def get_inputs():
    return [2.0 * torch.randn(rows, classes), torch.randint(0, classes, (rows,))]


def get_init_inputs():
    return [0.1]
