"""Buffers, attributes, random numbers, hooks and shared parameters."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "a running mean without momentum": Case(
        194504, "x", "self.n(x).relu()", "torch.randn(6, 3)", members="self.n = nn.BatchNorm1d(3, momentum=None)"),
    "statistics that are not kept": Case(
        38084, "x", "self.n(x).tanh()", "torch.randn(6, 3)",
        members="self.n = nn.BatchNorm1d(3, track_running_stats=False)"),
    "statistics no longer kept": Case(
        20967, "x", "self.n(x) * 2", "torch.randn(2, 3, 4, 4)",
        members="self.n = nn.BatchNorm2d(3)\nself.n.track_running_stats = False"),
    "a cache that is written": Case(
        115774, "x, i", "self.cache[i] = x.tanh()\nreturn self.cache * 2", "torch.randn(2, 3), torch.tensor([0, 2])",
        members="self.register_buffer('cache', torch.zeros(4, 3))"),
    "a plain tensor that is written": Case(
        115774, "x", "self.seen = self.seen * 0.9 + x.mean(0)\nreturn x - self.seen", "torch.randn(4, 3)",
        members="self.seen = torch.zeros(3)", kernels=False),
    "a buffer returned": Case(
        188074, "x", "self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)\nreturn x - self.mean, self.mean",
        "torch.randn(4, 3)", members="self.register_buffer('mean', torch.zeros(3))"),
    "dropout": Case(
        158643, "x", "F.dropout(self.l(x), 0.5, self.training).relu()", "torch.randn(4, 6)",
        members="self.l = nn.Linear(6, 6)", kernels=False),
    "dropout of channels": Case(
        142853, "x", "self.d(x) * 2 + 1", "torch.randn(2, 4, 3, 3)", members="self.d = nn.Dropout2d(0.5)"),
    "two dropouts in order": Case(
        192635, "x, y", "return F.dropout(x, 0.5) + F.dropout(y, 0.3)[:4], torch.rand(2)",
        "torch.randn(4, 6), torch.randn(8, 6)", kernels=False),
    "noise": Case(
        118735, "x", "return x + torch.randn_like(x) * 0.1, torch.rand(3).exp(), torch.randint(0, 9, (4,)) * 2",
        "torch.randn(4, 6)"),
    "coins": Case(
        188074, "x", "return torch.bernoulli(x.sigmoid()) * 2, torch.normal(x, 1.0).relu(), x.exp()",
        "torch.randn(4, 6)"),
    "a shared weight": Case(
        193061, "x", "(self.a(x).relu() @ self.b.weight).tanh()", "torch.randn(3, 4)",
        members="self.a = nn.Linear(4, 4)\nself.b = nn.Linear(4, 4)\nself.b.weight = self.a.weight"),
    "a layer called twice": Case(
        116858, "x", "self.l(self.l(x).relu()) + x", "torch.randn(3, 4)", members="self.l = nn.Linear(4, 4)",
        kernels=False),
    "a weight of a norm": Case(
        178080, "x", "self.l(x).tanh()", "torch.randn(3, 4)",
        members="self.l = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))"),
    "a weight of a spectral norm": Case(
        178080, "x", "self.l(x).relu()", "torch.randn(3, 4)",
        members="self.l = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5))", kernels=False),
    "a hook of a part": Case(
        91468, "x", "self.l(x).relu()", "torch.randn(3, 4)",
        members="self.l = nn.Linear(4, 5)\nself.l.register_forward_hook(lambda m, i, o: o * 2)", kernels=False),
    "a hook before a part": Case(
        91468, "x", "self.l(x).relu()", "torch.randn(3, 4)",
        members="self.l = nn.Linear(4, 5)\nself.l.register_forward_pre_hook(lambda m, i: (i[0] + 1,))", kernels=False),
    "a parameter that is changed": Case(
        29834, "x", "with torch.no_grad():\n    self.w.add_(0.5)\nreturn x * self.w + 1", "torch.randn(3, 4)",
        members="self.w = nn.Parameter(torch.zeros(4))", kernels=False),
    "a lazy choice of parts": Case(
        145697, "x",
        "for name, part in self.parts.items():\n    x = part(x) if name != 'skip' else x + 1\nreturn x.relu()",
        "torch.randn(3, 4)",
        members="self.parts = nn.ModuleDict({'a': nn.Linear(4, 4), 'skip': nn.Identity(), 'b': nn.Tanh()})"),
}

test_reported = held("states", CASES)
