"""Whole numbers of all widths, truth values, and divisions."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "floor division at the end of the range": Case(
        184406, "x, y", "torch.floor_divide(x, y)",
        "torch.tensor([-7, 7, -8, 2147483647], dtype=torch.int32), torch.tensor([2, -2, 4, -1], dtype=torch.int32)",
        kernels=False),
    "floor of a quotient of floats": Case(
        197895, "a, b", "return a // b, torch.div(a, b, rounding_mode='floor'), a % b",
        "torch.tensor([1.0, 0.5, 6.0, -1.0]), torch.tensor([0.1, 0.1, 0.2, 0.3])", kernels=False),
    "quotient toward zero": Case(
        184408, "a, b", "return torch.div(a, b, rounding_mode='trunc'), torch.fmod(a, b)",
        "torch.tensor([14.999999, -26.999999, 148.0, 2112.0]), torch.tensor([3.0, 3.0, 37.0, 33.0])", kernels=False),
    "division of whole numbers by zero": Case(
        178013, "a, b", "return a // b, a + b", "torch.tensor([7, -7, 9]), torch.tensor([2, 2, -4])",
        also=("torch.tensor([7, -7, 9]), torch.tensor([2, 0, -4])",), kernels=False),
    "remainder by zero": Case(
        174889, "a, b", "return a % b, a * b", "torch.arange(1, 5), torch.tensor([2, 3, -2, 5])",
        also=("torch.arange(1, 5), torch.tensor([2, 0, -2, 5])",), kernels=False),
    "remainder of a few": Case(
        191968, "a, b", "a % b", "torch.arange(6).reshape(2, 3), torch.tensor([16, 16, 16])", kernels=False),
    "remainder of halves": Case(
        183083, "x", "torch.remainder(x, 3.14)",
        "torch.tensor([-4.0, -1.5, -0.0, 0.0, 0.1, 1.0, 3.140625, 8.0]).half()", kernels=False),
    "shifts": Case(
        143566, "x, s", "return torch.bitwise_left_shift(x, s), x >> 2, x << 3",
        "torch.tensor([1000, -3, 7]), torch.tensor([3, 1, 5])", kernels=False),
    "bytes that wrap": Case(
        109105, "x, y", "return (x * y) + x, (y + 1) * x, x - y",
        "torch.tensor([6, 100, -128, 127], dtype=torch.int8), torch.tensor([4, 50, 3, 1], dtype=torch.int8)"),
    "unsigned bytes": Case(
        131910, "x, y", "return x - y, x + y, x * 2, ~x, x // 3, x.sum(), x.float().mean()",
        "torch.tensor([0, 255, 7], dtype=torch.uint8), torch.tensor([1, 3, 9], dtype=torch.uint8)"),
    "32 bits that wrap": Case(
        97968, "x", "return x * x, x + x, (x * x).long(), x.sum()",
        "torch.tensor([70000, -70000, 2147483647], dtype=torch.int32)"),
    "16 bits": Case(
        93380, "x, y", "return torch.min(x, y), -x, x.abs(), x.argmax(), torch.bitwise_and(x, y).clamp_max(3)",
        "torch.tensor([300, -5, 7, 7], dtype=torch.int16), torch.tensor([2, 3, -9, 7], dtype=torch.int16)"),
    "large whole numbers": Case(
        186164, "x", "return x + 1, x * 3, x.float(), x // 7, x > 2 ** 53",
        "torch.tensor([2 ** 53 + 1, -(2 ** 60), 2 ** 31])"),
    "large sums of whole numbers": Case(
        186164, "x", "return x.sum(), x.cumsum(0), x.float().sum(), x.prod()", "torch.full((70,), 2 ** 30 + 1)"),
    "truth values as numbers": Case(
        97968, "x, y", "return x & y, x | ~y, x ^ y, x * 2, x + y, x.sum(), x.any(), x.all(), x.long() - 1",
        "torch.rand(9) > 0.5, torch.rand(9) > 0.5"),
    "a power of whole numbers": Case(
        109105, "x", "return x ** 3, 2 ** x, x.pow(0), (-2) ** x", "torch.arange(0, 7)", kernels=False),
    "clamp of whole numbers by floats": Case(
        97968, "x", "return x.clamp(0.5, 3.5), x.clamp(1, 3), x.clamp_min(2)", "torch.arange(-2, 6)"),
    "rounding at halves": Case(
        148859, "x", "return x.round(), x.floor(), x.ceil(), x.trunc(), x.round(decimals=1)",
        "torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.25, 1e10, -0.2])"),
    "from floats out of range inside": Case(
        131910, "x", "return x.int(), x.long() * 2, x.to(torch.int16), x.bool()",
        "torch.tensor([0.9, -0.9, 300.7, -5.0, 0.0])"),
}

test_reported = held("integers", CASES)
