"""Which type a result has, and casts that round."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "a number as a tensor": Case(100191, "x", "(x * torch.as_tensor(2)).tanh()", "torch.ones(5)"),
    "subtraction with alpha": Case(95181, "x", "x.sub(1, alpha=2).exp()", "torch.rand(3, dtype=torch.float64)"),
    "whole numbers times a number": Case(
        74400, "x", "return x * 2.5, x * True, x / 2, x // 2, x ** 2", "torch.arange(-6, 6)"),
    "half by full without axes": Case(
        194547, "x, s", "return (x * s + 1).relu(), x + 1.0, x * 2, s.half() + x",
        "torch.randn(6).half(), torch.tensor(1.5)"),
    "silu of halves": Case(126169, "x", "F.silu(x)", "torch.randn(64).half()"),
    "comparison of a type with another": Case(
        93784, "x, y", "return torch.clamp_min(x, 0.5), torch.maximum(x, y), x > y", "torch.arange(4), torch.rand(4)"),
    "bfloat16 product and float32 sum": Case(
        181568, "x, w, b", "((x @ w).to(torch.bfloat16) + b).sum(-1)",
        "torch.randn(5, 6), torch.randn(6, 7), torch.randn(7)"),
    "log probabilities of bfloat16": Case(
        150638, "x, w, i", "F.log_softmax((x @ w.t()).float(), -1).gather(-1, i.unsqueeze(-1)).squeeze(-1)",
        "torch.randn(4, 8).bfloat16(), torch.randn(9, 8).bfloat16(), torch.randint(9, (4,))"),
    "down and up again": Case(
        171191, "x", "return (x.float().double() - x) * 1e7, x.half().double(), (x * 3).bfloat16().float() + 1",
        "torch.randn(33, dtype=torch.float64)"),
    "half between two functions": Case(
        181568, "x", "y = torch.tanh(x).half()\nz = (y * 3).float()\nreturn z - 3 * torch.tanh(x), y",
        "torch.randn(40)"),
    "mean of whole numbers as floats": Case(
        74400, "x", "return x.mean(0, dtype=torch.float32), x.sum(0), x.float().std(0)",
        "torch.randint(-9, 9, (6, 5))"),
    "sum of truth values": Case(
        97968, "x", "return (x > 0).sum(1), (x > 0).float().mean(1), (x > 0).prod(1)", "torch.randn(3, 9)"),
    "a sum in a narrower type": Case(
        126169, "x",
        "return x.sum(-1, dtype=torch.float16), x.cumsum(-1, dtype=torch.float64), x.prod(-1, dtype=torch.float64)",
        "torch.rand(4, 12)", kernels=False),
    "softmax in a wider type": Case(
        150638, "x", "return F.softmax(x, -1, dtype=torch.float32), F.log_softmax(x, -1)", "torch.randn(3, 8).half()"),
    "mixed branches of where": Case(
        93784, "x, y", "return torch.where(x > 0, x, y), torch.where(x > 0, 1, y), torch.where(x > 0, 1.5, 2)",
        "torch.randn(6), torch.randn(6, dtype=torch.float64)"),
    "a type asked for by the model": Case(
        109458, "x", "return x.to(torch.get_default_dtype()) + 1, torch.ones(3) * 2, x.new_full((3,), 2.5) + x[:3]",
        "torch.randn(6, dtype=torch.float64)"),
    "precision asked of a type": Case(
        195675, "x", "x.clamp_min(torch.finfo(x.dtype).eps).log()", "torch.tensor([1e-30, 1e-10, 0.5, 2.0])",
        kernels=False),
}

test_reported = held("dtypes", CASES)
