"""Distillation of a large network's opinions: divergence of softened probabilities."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 16000
classes = 1500
TINY = {"rows": 4, "classes": 9}


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, student, teacher):
        own = F.log_softmax(student / self.temperature, dim=1)
        wanted = F.softmax(teacher / self.temperature, dim=1)
        return F.kl_div(own, wanted, reduction="batchmean") * self.temperature**2


def get_inputs():
    return [3.0 * torch.randn(rows, classes), 3.0 * torch.randn(rows, classes)]


def get_init_inputs():
    return [4.0]
