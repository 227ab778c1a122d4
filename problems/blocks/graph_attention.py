"""Graph attention over a list of edges: a softmax among the edges that end in a node, by scattering."""

import torch
import torch.nn.functional as F
from torch import nn

nodes = 20000
edges = 160000
features = 64
TINY = {"nodes": 7, "edges": 20, "features": 6}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.project = nn.Linear(features, features, bias=False)
        self.source = nn.Linear(features, 1, bias=False)
        self.target = nn.Linear(features, 1)

    def forward(self, x, pairs):
        start, end = pairs
        h = self.project(x)
        score = F.leaky_relu(self.source(h)[start] + self.target(h)[end], 0.2).squeeze(-1)
        highest = x.new_full((x.shape[0],), -torch.inf).scatter_reduce(0, end, score, reduce="amax")
        weight = torch.exp(score - highest[end])
        total = torch.zeros_like(highest).index_add_(0, end, weight)
        weight = weight / total[end]
        return F.elu(torch.zeros_like(h).index_add(0, end, weight[:, None] * h[start]))


def get_inputs():
    return [torch.randn(nodes, features), torch.randint(0, nodes, (2, edges))]


def get_init_inputs():
    return [features]
