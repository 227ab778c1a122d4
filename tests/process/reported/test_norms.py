"""Statistics and norms: large means, small and large scales, few values."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "layer norm of a large mean": Case(51102, "x", "F.layer_norm(x, (4,)) * 2", "torch.randn(5, 4) + 2000"),
    "layer norm of little spread": Case(40302, "x", "F.layer_norm(x, (512,)) + 1", "torch.randn(4, 512) * 0.01 + 100"),
    "layer norm of huge numbers": Case(
        162489, "x", "F.layer_norm(x, (16,)) * 2", "torch.randn(3, 16) * 1e30", extreme=True),
    "layer norm at the end of the range": Case(
        173793, "x", "F.layer_norm(x, (8,))", "torch.randn(2, 8) * 1e33 + 8.5e37", extreme=True),
    "layer norm of two axes": Case(
        143182, "x", "self.n(x).tanh()", "torch.randn(2, 3, 10, 20)", members="self.n = nn.LayerNorm([10, 20])"),
    "deviation of huge and tiny numbers": Case(
        197089, "x, y", "return x.std(-1), y.var(1), torch.std_mean(x, 0)[0], y.std()",
        "torch.randn(4, 24) * 1e25, torch.randn(4, 24) * 1e-25"),
    "deviation beside a large mean": Case(
        197089, "x", "return x.std(-1), x.var(1) * 2, torch.var_mean(x, 0)[0]", "torch.randn(6, 40) + 1e5"),
    "lengths of huge and tiny vectors": Case(
        197089, "x, y", "return torch.linalg.vector_norm(x, dim=-1), y.norm(dim=1), F.normalize(y, dim=-1), x.norm()",
        "torch.randn(4, 24) * 1e25, torch.randn(4, 24) * 1e-25"),
    "a correction as large as the count": Case(
        113167, "x", "return torch.var_mean(x, dim=-1, correction=4.9)[0], x.var(0), x.std(1, correction=3)",
        "torch.rand(1, 3)", kernels=False),
    "variance of one value": Case(
        112954, "x", "return x.var(1, correction=0), x.std(1, unbiased=False), x.var((0, 1))", "torch.randn(4, 1)"),
    "norms of other orders": Case(
        145401, "x",
        "return x.norm(1, 1), x.norm(float('inf'), 1), x.norm(0, 1), x.norm(3, 0), torch.linalg.vector_norm(x, "
        "-float('inf'), 1)",
        "torch.randn(4, 6)"),
    "gradient of a length of zero": Case(
        178080, "x", "return x.norm(dim=1), torch.linalg.vector_norm(x * 2)", "torch.tensor([[0.0, 0.0], [3.0, 4.0]])"),
    "normalized zeros": Case(
        178080, "x", "return F.normalize(x, dim=1), F.cosine_similarity(x, x + 1, dim=1)",
        "torch.tensor([[0.0, 0.0], [3.0, 4.0]])"),
    "group norm of one value": Case(178123, "x", "F.group_norm(x, 2) + 1", "torch.randn(2, 4, 1)"),
    "batch norm of a constant": Case(
        16793, "x", "self.n(x).relu()", "torch.full((4, 3), 0.1) + torch.arange(3.0)",
        members="self.n = nn.BatchNorm1d(3)"),
    "instance norm of a large mean": Case(178123, "x", "F.instance_norm(x) * 2", "torch.randn(2, 3, 20) + 1e4"),
    "root mean square": Case(
        121924, "x", "self.n(x) * 2", "torch.randn(3, 8) * 1e-3", members="self.n = nn.RMSNorm(8)", kernels=False),
    "distances between rows": Case(
        113151, "x, y", "return torch.cdist(x, y), F.pairwise_distance(x, y[:3]), torch.cdist(x, y, p=1)",
        "torch.randn(3, 4), torch.randn(5, 4)"),
    "a divisor of a sum": Case(
        178080, "x", "h = self.c(x)\nreturn h / h.sum(1, keepdim=True) * self.w", "torch.rand(2, 4, 3, 3)",
        members="self.c = nn.Conv2d(4, 6, 1, bias=False)\nself.w = nn.Parameter(torch.ones(1, 6, 1, 1))"),
    "softmax of large numbers": Case(
        117542, "x", "return x.softmax(1), x.log_softmax(1), x.logsumexp(1), F.softmin(x, 1)",
        "torch.randn(3, 6) * 1e4"),
}

test_reported = held("norms", CASES)
