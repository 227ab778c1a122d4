"""Gathers, scatters, masks, embeddings and concatenations."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "added at repeated places": Case(
        95679, "x, i, v", "x.index_put((i,), v.tanh(), accumulate=True) * 2",
        "torch.zeros(4, 3), torch.tensor([1, 1, 3]), torch.randn(3, 3)"),
    "values repeated over places": Case(
        144539, "x, i", "x.index_put((i,), x.new_tensor([1.0, 2.0, 3.0]), accumulate=True).exp()",
        "torch.randn(5, 3), torch.tensor([[0, 2], [1, 3]])"),
    "scatter of one index": Case(
        138908, "x, i, v", "x.scatter_add(1, i, v.relu()) + 1",
        "torch.randn(3, 5), torch.tensor([[0, 0, 4]] * 3), torch.randn(3, 3)", kernels=False),
    "scatter by the largest": Case(
        3176, "x, i, v", "x.scatter_reduce(0, i, v, 'amax') * 2",
        "torch.randn(4, 3), torch.tensor([[0, 1, 1], [0, 3, 1]]), torch.randn(2, 3)", kernels=False),
    "negative places": Case(
        135546, "x, i", "return x[i] * 2, x[:, -1] + 1, x[-2:].exp()", "torch.randn(5, 3), torch.tensor([-1, 0, -5])"),
    "a place that is not there": Case(
        135546, "x, i", "return x[i].tanh() * 2", "torch.randn(5, 3), torch.tensor([4, 0])",
        also=("torch.randn(5, 3), torch.tensor([5, 0])",)),
    "gather with a gradient": Case(
        150638, "x, i", "x.softmax(-1).gather(-1, i).log()", "torch.randn(4, 6), torch.randint(6, (4, 2))"),
    "a mask that selects": Case(
        148859, "x", "y = x.tanh()\nreturn y[y > 0].sum(), (y * 2)[x > 10]", "torch.randn(3, 4)", kernels=False),
    "places of what is true": Case(
        148859, "x", "return torch.nonzero(x > 0), (x.exp() + 1).sum(0)", "torch.randn(3, 4)", kernels=False),
    "a mask that fills": Case(
        180164, "x, m", "return x.masked_fill(m, -float('inf')).softmax(-1), x.masked_fill(~m, 7)",
        "torch.randn(3, 5), torch.tensor([[True, False, False, True, False]] * 3)"),
    "rows all masked": Case(
        134650, "x, m", "x.masked_fill(m, -float('inf')).softmax(-1) @ x",
        "torch.randn(3, 3), torch.tensor([[True] * 3, [False] * 3, [True, False, True]])"),
    "embedding with padding": Case(
        20406, "i", "self.e(i).tanh().sum(1)", "torch.tensor([[1, 0, 3], [0, 0, 2]])",
        members="self.e = nn.Embedding(5, 4, padding_idx=0)"),
    "embedding of a bounded norm": Case(
        115774, "i", "self.e(i) * 2 + 1", "torch.tensor([1, 3, 3])",
        members="self.e = nn.Embedding(5, 4, max_norm=0.5)", kernels=False),
    "bags of words": Case(
        95679, "i, o", "self.e(i, o).tanh() * 2", "torch.tensor([1, 2, 4, 4]), torch.tensor([0, 2])",
        members="self.e = nn.EmbeddingBag(5, 4, mode='sum')"),
    "rolled and flipped": Case(
        198270, "x", "return x.roll((1, -2), (0, 1)) + x.flip(1), torch.rot90(x * 2, 1)", "torch.randn(4, 5)"),
    "triangles": Case(
        182765, "x", "return x.tril(-1) + x.triu(1).exp(), torch.diag(x).tanh(), x.diagonal(1) * 2",
        "torch.randn(5, 5)"),
    "taken apart and put together": Case(
        190938, "x", "a, b = x.chunk(2, 1)\nreturn torch.stack([a, b.exp()], 1), torch.cat([b, a * 2], 0)",
        "torch.randn(3, 6)"),
    "chunks of one parameter": Case(
        193061, "x",
        "a, b, c, d = self.t.chunk(4, 1)\ny = x + F.layer_norm(x, (6,)) * (1 + a) + b\n"
        "return y + F.layer_norm(y, (6,)) * (1 + c) + d",
        "torch.randn(2, 6)", members="self.t = nn.Parameter(torch.randn(1, 24))"),
    "searched in a sorted row": Case(
        186164, "s, x", "return torch.searchsorted(s, x) * 2, torch.bucketize(x, s) + 1",
        "torch.arange(0.0, 9.0), torch.tensor([3.5, 0.0, 8.0, 11.0])", kernels=False),
    "one hot": Case(
        69339, "i, x", "(F.one_hot(i, 4).float() * x.softmax(-1)).sum(-1)",
        "torch.tensor([0, 3, 1]), torch.randn(3, 4)"),
}

test_reported = held("indexing", CASES)
