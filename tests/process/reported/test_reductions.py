"""Reductions, ranks, tensors without elements, orders and ties."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "without elements": Case(
        28380, "x",
        "return x.sum(0), x.mean(1), x.prod(0), (x * 2).sum(), x.any(0), x.norm(dim=0), x.var(0), x.logsumexp(0)",
        "torch.randn(0, 3)", kernels=False),
    "largest beside an empty axis": Case(
        28380, "x", "return x.max(1)[0], x.argmax(1), x.amin(1), x.softmax(1)", "torch.randn(0, 4)", kernels=False),
    "largest of nothing": Case(
        130086, "x", "return x.exp() + 1, x.amax(1)", "torch.randn(2, 3)",
        also=("torch.randn(2, 0)", "torch.randn(0, 3)")),
    "smallest and largest": Case(
        95349, "x", "return torch.aminmax(x, dim=0)[0], x.exp().amax(0), torch.aminmax(x)[1]", "torch.randn(5, 4)"),
    "an empty axis kept": Case(
        188218, "x",
        "return (x * 2 + 1).reshape(3, -1), x.flatten().exp(), torch.cat([x, x + 1], 1), x.transpose(0, 1) - 1",
        "torch.randn(3, 0)", kernels=False),
    "an axis of a number": Case(
        130121, "x", "return x.softmax(0), x.sum(-1) + 1, x.argmax(0), x.cumsum(0), x.amax(0)", "torch.tensor(0.7)"),
    "seven axes": Case(
        178080, "x", "return (x.sum((1, 3, 5)) * 2).exp(), x.permute(6, 0, 5, 1, 4, 2, 3) + 1, x.amax(3).softmax(-1)",
        "torch.randn(2, 1, 3, 2, 2, 1, 3)"),
    "ties of a largest": Case(
        93380, "x", "return x.argmax(1), x.argmin(1), x.max(1)[1], x.min(0)[1], x.amax(1) * 2",
        "torch.randint(0, 3, (5, 9)).float()"),
    "gradient of ties": Case(
        186799, "x", "return x.amax(1), x.max(1)[0], x.amin(0), x.max()",
        "torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])", kernels=False),
    "stable order of equals": Case(
        114226, "x", "return torch.sort(x, dim=1, stable=True)[1] * 2, x.topk(2, 1)[0] + 1, x.kthvalue(2, 1)[0].exp()",
        "torch.randint(0, 2, (3, 8)).float()"),
    "running products with zeros": Case(
        174016, "x", "x.cumprod(1) * 2", "torch.tensor([[1.5, 0.0, 2.0, 3.0], [0.5, 2.0, 0.0, 0.0]])"),
    "running sums of many": Case(
        174016, "x", "return x.cumsum(-1) + 1, x.flip(-1).cumsum(-1), x.logcumsumexp(-1)", "torch.randn(3, 300)"),
    "running extremes with NaN": Case(
        93784, "x", "return x.cummax(0)[0], x.cummin(0)[1], x.cummax(0)[1] * 2",
        "torch.tensor([1.0, 3.0, float('nan'), 4.0, 3.0])"),
    "largest with NaN": Case(
        93784, "x", "return x.amax(1), x.max(1)[0], x.argmax(1), x.amin(1), x.sum(1), x.max()",
        "torch.tensor([[1.0, float('nan'), 2.0], [3.0, 1.0, 3.0]])"),
    "an extremum of minus infinities": Case(
        134650, "x", "return x.logsumexp(1), x.amax(1), (x - x.amax(1, keepdim=True)).exp()",
        "torch.full((2, 3), -float('inf'))"),
    "long sums": Case(
        109105, "x", "return x.sum() / 1000, x.mean(), x.square().sum(-1).sqrt()", "torch.rand(3, 5000) * 1e4"),
    "a sum that cancels": Case(
        40302, "x", "return (x - x.mean(1, keepdim=True)).sum(1), (x + 1e4 - 1e4).mean(1)", "torch.randn(4, 64)"),
    "axes in any order": Case(
        178080, "x", "return x.sum((-1, 0)), x.mean((2, 1), keepdim=True), x.amax((0, 2))", "torch.randn(3, 4, 5)"),
    "count of what is not zero": Case(
        97968, "x", "return torch.count_nonzero(x, 1), (x != 0).sum(), x.nansum(1)",
        "torch.tensor([[0.0, -0.0, 1.0], [float('nan'), 2.0, 0.0]])"),
}

test_reported = held("reductions", CASES)
