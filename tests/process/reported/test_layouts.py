"""Strides, memory formats and views: how results lie in memory."""

from __future__ import annotations

from reported.case import Case, held

_LAST = "torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)"

CASES = {
    "channels last through functions": Case(102376, "x", "return x.relu() * 2, (x + 1).sigmoid()", _LAST),
    "channels last through a convolution": Case(
        99773, "x", "F.relu(self.c(x))", _LAST, members="self.c = nn.Conv2d(3, 4, 3, padding=1)"),
    "channels last beside contiguous": Case(
        91233, "x, y", "return torch.cat([x, y], 1), x + y, y * x.tanh()", f"{_LAST}, torch.randn(2, 3, 4, 5)"),
    "one channel": Case(
        120873, "x", "F.relu(self.c(x))", "torch.randn(2, 1, 6, 6)", members="self.c = nn.Conv2d(1, 3, 3)",
        kernels=False),
    "strides of one": Case(
        116433, "x", "return x.exp() + 1, x.transpose(0, 1) * 2", "torch.randn(1, 6, 1).expand(1, 6, 1)"),
    "a padded row": Case(130394, "x", "x + x", "torch.randn(16, 16)[:, :8]", kernels=False),
    "transposed in and out": Case(
        130956, "x", "return x.tanh() * 2, x.t().exp(), (x * 3).t()", "torch.randn(5, 7).t()"),
    "seen as strided": Case(92063, "x", "torch.as_strided(x + 1, (2, 3, 2), (6, 1, 3)) * 2", "torch.randn(3, 4)"),
    "not contiguous and complex pairs": Case(
        188718, "x", "torch.view_as_complex(x.tanh()).abs() + 1", "torch.randn(2, 3, 2).transpose(0, 1)"),
    "an expanded input": Case(
        183986, "x, y", "return (x * y).sum(0), x.exp() + y", "torch.randn(1, 4).expand(3, 4), torch.randn(3, 4)"),
    "permuted output": Case(
        122239, "x", "return (x * 2).permute(2, 0, 1), x.sigmoid().transpose(1, 2)", "torch.randn(2, 3, 4)"),
    "every second": Case(184543, "x", "return x[::2] * 2, (x + 1)[:, 1::3], x.flip(0)[1:].exp()", "torch.randn(7, 9)"),
    "negated view": Case(171852, "x", "return x.tanh() + 1, x * 2", "torch._neg_view(torch.randn(3, 4))"),
    "an offset": Case(198095, "x", "return x.exp() * 2, x.sum(-1)", "torch.randn(41)[1:].view(5, 8)"),
    "channels last in three dimensions": Case(
        102376, "x", "x.tanh() * 2 + 1", "torch.randn(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d)"),
    "channels last through a norm": Case(197514, "x", "self.n(x).relu()", _LAST, members="self.n = nn.BatchNorm2d(3)"),
    "channels last through pools": Case(
        184026, "x", "return F.max_pool2d(x, 2) + 1, F.avg_pool2d(x, 2) * 2, F.interpolate(x.relu(), scale_factor=2)",
        _LAST),
    "made contiguous": Case(
        92063, "x", "return x.contiguous() * 2, x.clone() + 1, x.reshape(-1).exp()", "torch.randn(4, 6).t()"),
    "unfolded windows": Case(172064, "x", "x.unfold(1, 3, 1).tanh().sum(-1)", "torch.randn(2, 8)"),
}

test_reported = held("layouts", CASES)
