"""Mamba 2's state space by chunks: masked decays within a chunk, and states handed from chunk to chunk."""

import torch
import torch.nn.functional as F
from torch import nn

samples = 4
chunks = 8
length = 64
heads = 8
features = 32
states = 16
TINY = {"samples": 2, "chunks": 2, "length": 3, "heads": 2, "features": 4, "states": 3}


class Model(nn.Module):
    def __init__(self, length, heads):
        super().__init__()
        self.length = length
        self.rate = nn.Parameter(-0.1 - torch.rand(heads))

    def decay(self, x):
        total = torch.cumsum(x, -1)
        within = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
        return (total[..., :, None] - total[..., None, :]).masked_fill(~within, -torch.inf).exp()

    def forward(self, x, step, enters, leaves):
        x = x * step.unsqueeze(-1)
        x, step, enters, leaves = (t.unflatten(1, (-1, self.length)) for t in (x, step, enters, leaves))
        rate = (step * self.rate).permute(0, 3, 1, 2)
        total = torch.cumsum(rate, -1)
        inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", leaves, enters, self.decay(rate), x)
        ends = torch.einsum("bclhn,bhcl,bclhp->bchpn", enters, torch.exp(total[..., -1:] - total), x)
        ends = torch.cat((torch.zeros_like(ends[:, :1]), ends), 1)
        begins = torch.einsum("bhzc,bchpn->bzhpn", self.decay(F.pad(total[..., -1], (1, 0))), ends)[:, :-1]
        carried = torch.einsum("bclhn,bchpn,bhcl->bclhp", leaves, begins, torch.exp(total))
        return (inside + carried).flatten(1, 2)


def get_inputs():
    return [torch.randn(samples, chunks * length, heads, features), torch.rand(samples, chunks * length, heads),
            torch.randn(samples, chunks * length, heads, states), torch.randn(samples, chunks * length, heads, states)]


def get_init_inputs():
    return [length, heads]
