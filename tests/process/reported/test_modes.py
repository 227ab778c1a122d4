"""What a forward asks of its surroundings: gradient mode, training, autocast, globals."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "asks whether gradients are recorded": Case(
        100977, "x", "y = x.tanh() * self.g\nreturn y + 1 if torch.is_grad_enabled() else y * 2", "torch.randn(3, 4)",
        members="self.g = nn.Parameter(torch.randn(4))"),
    "asks whether an input requires a gradient": Case(
        131975, "x", "return (x.exp() * (3 if x.requires_grad else 2)).sum(-1), x * 2", "torch.randn(3, 4)"),
    "asks whether a parameter requires one": Case(
        139476, "x", "y = x * self.g\nreturn y.sigmoid() if self.g.requires_grad else y", "torch.randn(3, 4)",
        members="self.g = nn.Parameter(torch.randn(4), requires_grad=False)", kernels=False),
    "gradients turned on inside": Case(
        114338, "x", "with torch.enable_grad():\n    a = x * 2 + 1\nb = x * 2 + 1\nreturn a, b.exp()",
        "torch.randn(3, 4)"),
    "gradients turned off inside": Case(
        173926, "x",
        "a = self.l(x)\nwith torch.no_grad():\n    v = a.view(-1)\n    m = a.mean()\nreturn (a - m).relu(), v",
        "torch.randn(3, 5)", members="self.l = nn.Linear(5, 4)"),
    "asks for training": Case(
        105653, "x", "return x.relu() * 2 if self.training else x.tanh() + 1", "torch.randn(3, 4)"),
    "one part stays in evaluation": Case(
        37823, "x", "self.n(self.l(x)).relu()", "torch.randn(6, 3)",
        members="self.l = nn.Linear(3, 4)\nself.n = nn.BatchNorm1d(4)\nself.n.train = lambda mode=True: self.n\n"
                "self.n.training = False",
        kernels=False),
    "autocast inside": Case(
        124901, "x",
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    y = self.l(x)\nreturn y.float().tanh(), y",
        "torch.randn(3, 4)", members="self.l = nn.Linear(4, 5)"),
    "asks for autocast": Case(
        164455, "x", "y = x.sin() + 1\nreturn y.bfloat16() if torch.is_autocast_enabled('cpu') else y",
        "torch.randn(3, 4)"),
    "a type set for a while": Case(
        112787, "x",
        "before = torch.get_default_dtype()\ntorch.set_default_dtype(torch.float64)\ny = torch.ones(4) * 2\n"
        "torch.set_default_dtype(before)\nreturn x.double() * y + 1",
        "torch.randn(3, 4)"),
    "a number of the file": Case(
        108898, "x", "x.tanh() * SCALE + OFFSETS[1]", "torch.randn(3, 4)", before="SCALE = 2.5\nOFFSETS = [0.0, 1.5]"),
    "a table of the file": Case(
        145697, "x", "(x * TABLE).relu() + TABLE.sum()", "torch.randn(3, 4)", before="TABLE = torch.arange(4.0) / 3"),
    "a closure": Case(
        109203, "x", "self.f(x) * 2", "torch.randn(3, 4)", members="self.f = scaled(1.5)",
        before="def scaled(by):\n    def f(x):\n        return x.tanh() * by\n    return f"),
    "shapes decide": Case(
        148859, "x",
        "y = x.relu()\nif x.shape[0] > 2 and y.dim() == 2:\n    y = y.sum(-1, keepdim=True) + x\nreturn y",
        "torch.randn(3, 4)", also=("torch.randn(2, 4)",)),
}

test_reported = held("modes", CASES)
