"""The loss of a variational autoencoder: reconstruction plus the divergence from a normal prior."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 512
pixels = 12288
latent = 256
TINY = {"batch": 3, "pixels": 20, "latent": 5}


class Model(nn.Module):
    def forward(self, restored, original, mean, log_variance):
        error = F.mse_loss(restored, original, reduction="sum") / original.shape[0]
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(dim=1).mean()
        return error + divergence, divergence


def get_inputs():
    return [torch.rand(batch, pixels), torch.rand(batch, pixels), torch.randn(batch, latent),
            0.5 * torch.randn(batch, latent)]


def get_init_inputs():
    return []
