"""CLIP's loss: normalised embeddings, all pairs, cross-entropy along rows and columns."""

import torch
import torch.nn.functional as F
from torch import nn

pairs = 2048
features = 320
TINY = {"pairs": 6, "features": 8}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, picture, text):
        picture, text = F.normalize(picture, dim=-1), F.normalize(text, dim=-1)
        logits = self.log_scale.exp() * picture @ text.t()
        own = torch.arange(logits.shape[0], device=logits.device)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2


def get_inputs():
    return [torch.randn(pairs, features), torch.randn(pairs, features)]


def get_init_inputs():
    return []
