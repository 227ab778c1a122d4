"""DLRM: pairwise products of sparse embeddings and the dense vector, the lower triangle kept."""

import torch
from torch import nn

batch = 24000
tables = 26
rows = 2000
features = 64
TINY = {"batch": 3, "tables": 3, "rows": 9, "features": 5}


class Model(nn.Module):
    def __init__(self, tables, rows, features):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, features) for _ in range(tables))
        row, column = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("row", row)
        self.register_buffer("column", column)

    def forward(self, dense, sparse):
        vectors = [dense] + [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return torch.cat([dense, products[:, self.row, self.column]], dim=1)


def get_inputs():
    return [torch.randn(batch, features), torch.randint(0, rows, (batch, tables))]


def get_init_inputs():
    return [tables, rows, features]
