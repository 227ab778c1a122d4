"""Values as eager has them: signs of zeros and infinities, NaN, roundings, casts, angles; on both targets.

Functions are captured, rewritten, planned and run as compiled kernels, and held against PyTorch on a CPU.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact_functions import erfcx
from loop_cases import kernel_of, load, store
from native_tools import Natively, aligned, compiled, launch

from kernelwright.codegen.generate import generate_kernel
from kernelwright.ir.scalar import FUNCTIONS, PRODUCTS, UNFUSED, WHOLE_FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Load, Whole
from kernelwright.plan.kernels import LoopKernel

TARGETS = ("cpp", "cuda")
EDGES = torch.tensor([
    0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, -0.5, 0.3, -0.3, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 6.0, 7.0, -7.0, 1e-45,
    -1e-45, 1e-40, -1e-40, 1.2e-38, -1.2e-38, 1e-20, -1e-20, 1e-5, -1e-5, 20.5, -20.5, 88.5, 88.8, -87.0, -88.8, -104.0,
    1e4, -1e4, 2.0**24 + 2, 1e15, -1e15, 2.1e15, 1e16, -1e16, 1e22, 1e30, -1e30, 3.4e38, -3.4e38,
])
TENTHS = torch.arange(-64, 65).float().repeat(4) / 10
GENERATOR = torch.Generator().manual_seed(7)
WIDE = torch.randn(1024, generator=GENERATOR, dtype=torch.float64)
NEAR = WIDE.float()
LARGE = torch.tensor([2**53 + 1, 2**53, 2**24 + 1, 2**24, -(2**53) - 1, 2**62 + 1, 2**63 - 1, 257, 2049, 0, 1, -3] * 8)
ZEROS = torch.tensor([[-0.0, -0.0, -0.0], [0.0, -0.0, -0.0], [1.0, -1.0, -0.0], [-inf, inf, 0.0], [nan, 1.0, 2.0],
                      [7.0, 7.0, 7.0]]).repeat(11, 1)
SEVENS = torch.arange(1, 65).float().reshape(64, 1).repeat(1, 28)

def chain(x: torch.Tensor) -> torch.Tensor:
    """Some operators, of which each rounds."""
    return ((x * 0.7 + 0.125) * x - 0.25) * 1.7


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

#: Every result, to the bit but for a few units of the last place where a function is approximated.
CASES: dict[str, Case] = {
    "products with zeros": (lambda x: (1 / (x * 0.0), x * -0.0, 1 / (x * -0.0), x * (x > 0), x * torch.zeros_like(x),
                                       x * torch.full_like(x, -0.0)), (EDGES,)),
    "sums with zeros": (lambda x: (x + 0.0, x - 0.0, x + -0.0, x - -0.0, 0.0 - x, -0.0 - x, torch.zeros_like(x) - x,
                                   torch.full_like(x, -0.0) + x, torch.rsub(x, 0.0), torch.add(x, x, alpha=-0.0),
                                   torch.sub(x, x * 3, alpha=2)), (EDGES,)),
    "bounds": (lambda x: (x.relu(), F.relu6(x), x.clamp(max=-0.0), (x * 3).clamp(-0.0, 5.0), x.clamp(min=0.0),
                          x.clamp(min=-0.0), x.clamp(0.0, -0.0), x.clamp(2.0, -2.0), x.clamp(min=nan),
                          x.clamp(max=nan), x.relu().clamp(min=nan), x.clamp(nan, 1.0), F.hardtanh(x, nan, 2.0),
                          F.hardtanh(x), F.threshold(x, 0.0, -0.0), F.threshold(x, -0.0, 1.0), F.leaky_relu(x, -0.5),
                          F.leaky_relu(x, 0.0)), (EDGES,)),
    "choices": (lambda x: (torch.where(x > 0, x, -0.0), torch.where(x > 0, 0.0, x), x.masked_fill(x < 0.1, -0.0),
                           x.masked_fill(x > 0, -inf), torch.where(x != x, -0.0, x)), (EDGES,)),
    "pads": (lambda x: (F.pad(x * 1, (2, 3), value=-0.0), F.pad(x * 1, (2, 3), value=-0.0) + F.pad(x, (2, 3)),
                        torch.cat([x * 2, torch.full((5,), -0.0)]), F.pad(-x, (1, 1), value=-0.0),
                        F.pad(x.relu(), (1, 1), value=-0.0), torch.roll(-x, 3)), (EDGES,)),
    "powers": (lambda x: (x**2, x**3, x**4, x**-1, x**-2, x**-3, x**0, x**0.5, x**-0.5, x**1.5, 2.0**x, x**inf, x**-inf,
                          x.exp2(), x.log10(), x.frac()), (EDGES,)),
    "added products": (lambda x: (torch.addcmul(x, x, x, value=1e-30), torch.addcdiv(x, x, x + 1, value=1e-30),
                                  torch.addcmul(x, x, x, value=-0.0), torch.lerp(x, x * 2, 0.3)), (EDGES,)),
    "numbers fold in their type": (
        lambda x: ((torch.full((50,), 0.1) * 3 > 0.3) & (x > -inf), x * (torch.full((50,), 0.1) * 3 - 0.3),
                   x * (torch.full((50,), 0.1).double() - 0.1), x * (torch.full((50,), 1e30) * 1e30 * 1e-30),
                   x * torch.full((50,), 16777216.0).add(1.0), torch.full((50,), -7) // 2 * x), (EDGES,)),
    "negated sums that cancel": (
        lambda x: (-(x * 10 - 1), (x * 10 - 1) * -1, -1 * (1 - x * 10), (x * 10 - 1) / -1, -(1 - x * 10), -(x * 10 + 1),
                   -0.0 - (x * 10 - 1), -(x * x.flip(0) - x.flip(0) * x), -2 * (x * 10 - 1), -(x * 10 - 1).relu(),
                   (x * 10 - 1).neg().neg(), -(x * 10).sub(1).add(0), torch.where(x > 0, -(x * 10 + 1), x),
                   torch.rsub(x * 10 + 1, 0), torch.addcmul(x, x, x, value=-1).neg(), (x * 10 + 1).double().neg(),
                   -(x.half() * 10 + 1), -(x.double() * 10 + 1), x - -(x * 10 + 1)), (TENTHS,)),
    "sums of zeros": (lambda m: (m.sum(1), m.mean(1), (m * -1).sum(1), (-m).sum(1), (m * -0.0).sum(1), m.cumsum(1),
                                 m[:, :1].sum(1), m[:, 1:2].mean(1), m[:, :1].logsumexp(1),
                                 m[:, :1].expand(66, 3).sum(1), (m / -2).sum(), m.abs().mul(-0.0).sum(0)), (ZEROS,)),
    "moments of few": (lambda m: (m.std(1, unbiased=False), m[:, :1].std(1, unbiased=False), m[:, :1].var(1), m.std(0),
                                  m[:, :2].var(1, unbiased=False)), (SEVENS[:, :3],)),
    "means of equals": (lambda m: (m.mean(1).floor(), m.mean(1) == m[:, 0], m - m.mean(1, keepdim=True), m.var(1),
                                   F.avg_pool1d(m[None], 7).floor(), F.adaptive_avg_pool1d(m[None], 4).floor(),
                                   m[:, :7].mean(1).floor()), (SEVENS,)),
    "whole logarithms": (lambda x: (x.log10().floor(), x.log10().ceil(), x.log2().floor(),
                                    x.log10() == x.log10().round()),
                         (torch.tensor([10.0**k for k in range(-37, 39)]),)),
    "whole logarithms in float64": (lambda x: (x.log10().floor(), x.log10().ceil(), x.log2().floor()),
                                    (torch.tensor([10.0**k for k in range(-37, 39)], dtype=torch.float64),)),
    "casts": (lambda d: ((d.float().double() - d) * 1e6, ((d + 1).float().double() - 1 - d), d.half().double() - d,
                         d.bfloat16().double() - d, (d.float() * d.float()).double(), d.float() > 0.1,
                         (d * 1e30).float() * 1e10, (d.float() * 3e38 * 3e38).double(), d.half().float(),
                         (d * 1e300).float(), (d * 1e-300).float(), d.half().bfloat16(), d.bfloat16().half(),
                         (d * 100).to(torch.int8), (d * 100).to(torch.uint8), (d * 1e10).int(), d.bool()), (WIDE,)),
    "residues": (lambda d, x: (d.float() - x, (d.float() - x) * 2, torch.where(d.float() == x, d, -d)), (WIDE, NEAR)),
    "mixed types": (lambda d, x: (torch.where(d > 0, x * 3e38 * 10 * 1e-38, x), x * 3e38 * 10 * 1e-38 + d, d * x,
                                  (x * 3).double() - x.double() * 3, x.double() * 0.1 > x * 0.1, x == d,
                                  (d * 0.1).float() * 0.1, x.half() + d), (WIDE, NEAR)),
    "tensors without axes": (
        lambda x, s: (x * s, x > s, x + s, (x * s).double() - x.double() * s, x.half() * s, x.half() > s,
                      s.float() * x - x * s, torch.where(x > 0, x, s.float()), x > torch.tensor(0.3).double(),
                      x == torch.tensor(0.1).double() * 1, (x * torch.full((), 0.1, dtype=torch.float64) - 0.01) * 1e6,
                      x.half() > torch.tensor(0.3), (x * 10).long() * s, F.pad(x * s, (1, 1))),
        (TENTHS, torch.tensor(0.3, dtype=torch.float64))),
    "large integers": (lambda i: (i.float(), i.double(), i.half(), i > 9007199254740992.0, i == 16777216.0,
                                  i == 9007199254740992, i * 1.0, i.float().long(), i.double().long(), (i + 1) * 3,
                                  i.int(), i.to(torch.int16), i.float() - i.double(), i % 7, i // -7, i / 3,
                                  i.half() > i, i.bfloat16() + i > i.double()), (LARGE,)),
    "integers": (lambda i: (-i, i.abs(), i // 3, i // -3, i % 3, i % -3, i * 0.1, (i * 0.1).long(), i > 0.5,
                            i.to(torch.uint8), -i.to(torch.uint8), i.to(torch.uint8) - 200, i.to(torch.int8) * 7,
                            i.to(torch.int8).abs(), i.to(torch.int16) * i.to(torch.int16), ~i, i & 3, i ^ 5,
                            i.bool() + i, i.bool() * 0.5, i.bool() + i.bool(), i.int() / 7, i.clamp(-3, 5)),
                 (torch.arange(-200, 200),)),
    "truth values": (lambda x: ((x > 0) & (x < 1), (x > 0) | (x < -1), (x > 0) ^ (x < 1), ~(x > 0), (x > 0) * 2.5,
                                (x > 0) + (x < 1), (x > 0) == (x < 1), (x > 0) > (x < 1), torch.isnan(x)), (EDGES,)),
    "rounded products": (lambda x: (x * 10 - 1, x * 10 - 1 > 0, (x * 10 + 0.5).floor(), (x * 10 + 7).long(),
                                    1 / (x * 10 - 1), (x * 0.7 - 0.07).bool(), x * x.flip(0) - x.flip(0) * x,
                                    1 / (x * x.flip(0) - x.flip(0) * x), (x * 10 - 1).sqrt(), x.square() - x * x),
                         (TENTHS,)),
    "extrema of halves": (lambda x: [f(chain(x.to(t))) for t in (torch.half, torch.bfloat16) for f in (
        lambda v: (v - v.amax(1, True)).sign(), lambda v: (v.amax(0) - v).sqrt(), lambda v: v == v.amin(1, True),
        lambda v: v == F.max_pool1d(v[None], 3, 1, 1)[0], lambda v: 1 / (v.max() - v), lambda v: v.argmax(1),
        lambda v: torch.stack([v.min(0).values, v[0]]), lambda v: v.T - v.T.amax(1, True),
        lambda v: v * (v >= v.amax(1, True)), lambda v: v.argmin(0) * 2, lambda v: (v[:, 1:] - v[:, 1:].amax(0)).log2(),
    )], (NEAR.reshape(32, 32),)),
    "jumps over halves that are stored": (lambda x: [(chain(y), chain(y) > y) for y in (
        x.half() + 0.25, x.bfloat16() + 0.25)], ((torch.arange(1024, 2048) / 2048).reshape(512, 2),)),
    "means of equal halves": (lambda x: [f(chain(x.to(t))) for t in (torch.half, torch.bfloat16) for f in (
        lambda v: (v - v.mean(1, True)).sign(), lambda v: v > v.mean(1, True), lambda v: v.logsumexp(0) >= v.amax(0),
        lambda v: v.mean(1) == v[:, 0])], (NEAR[:32].reshape(32, 1).expand(32, 16).contiguous(),)),
    "numbers beside halves": (lambda x: [f(x.to(t)) for t in (torch.half, torch.bfloat16) for f in (
        lambda v: v + 0.1 > 0.7, lambda v: (v - 0.3).sign(), lambda v: 0.3 - v == v, lambda v: ((v + 0.1) * 64).floor(),
        lambda v: torch.add(v, v.flip(0), alpha=0.1) > 0.1, lambda v: (v.abs() ** 0.3 * 256).round(),
        lambda v: (0.3 ** v * 256).round(), lambda v: torch.sub(v, 0.3, alpha=2) < 0,
        lambda v: v.clone().add_(0.1).sub_(v, alpha=0.3) > 0.7)], (NEAR,)),
    "numbers that halves do not hold": (lambda x: (
        F.normalize(x), x / (x + 1e-12), (x + 1e-10).log(), 1 / (1e-8 - x), x.clamp_min(1e-9).log(), x / (x - 1e9),
        torch.where(x > 0, x, -1e9).softmax(-1), F.pad(x, (1, 1), value=1e-12).log2(),
        x.masked_fill(x == 0, 1e-12).log2(), ((x + 1) * 1e6).sin(), (x + 1) * 1e-9 * 1e9, ((x + 3) / 1e9).log(),
        x / F.threshold(x, 1.0, 1e-12), 1 / F.hardtanh(x, 1e-10, 1.0), x / torch.full_like(x, 1e-12)),
        (torch.zeros(3, 40).half(),)),
    "rounded products of halves": (lambda x: ((x.half() * 10 - 1).float() > 0, (x.half() * 10 - 1).float() * 3),
                                   (TENTHS,)),
}


@pytest.fixture(scope="module", params=TARGETS)
def natively(request, tmp_path_factory) -> Natively:
    """All cases compiled together."""
    torch.set_num_threads(1)
    return Natively(CASES, request.param, tmp_path_factory.mktemp("values"))


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_eager(name: str, natively: Natively) -> None:
    function, inputs = CASES[name]
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(function(*inputs))
    for number, (ours, eager) in enumerate(zip(natively(name), expected, strict=True)):
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape), number
        wrong = different(ours, eager, 4.0)
        assert wrong is None, f"result {number}: {wrong}"


def test_of_equal_zeros_an_extremum_is_the_first(tmp_path) -> None:
    """Whatever the schedule: rows of any length, columns, windows, one row in parts."""
    zeros = torch.where(torch.rand(2100, 40, generator=GENERATOR) < 0.5, 0.0, -0.0)
    narrow = zeros[:, :6].contiguous()

    def extrema(axis: int) -> Callable[..., Any]:
        return lambda x: [1 / f(x * 1, axis).values for f in (torch.max, torch.min)]

    functions = {
        "rows": (extrema(1), (zeros,)), "short rows": (extrema(1), (narrow,)), "wide": (extrema(1), (zeros.double(),)),
        "one row": (extrema(0), (zeros[:, 0].contiguous(),)), "columns": (extrema(0), (zeros,)),
        "few columns": (extrema(0), (narrow,)), "middle": (extrema(1), (zeros.reshape(3, 700, 40),)),
        "places": (lambda x: [1 / f(x * 1, 1)[0] + f(x * 1, 1)[1] for f in (torch.max, torch.min)], (zeros,)),
        "windows": (lambda x: [1 / F.max_pool2d(x * 1, 2), 1 / F.max_pool2d(x * 1, (2, 3), (1, 2)),
                               1 / F.max_pool2d(x, 3, 2, 1)], (zeros.reshape(1, 30, 70, 40),)),
    }
    natively = Natively(functions, "cpp", tmp_path)
    for name, (function, inputs) in functions.items():
        for number, (ours, eager) in enumerate(zip(natively(name), function(*inputs), strict=True)):
            assert different(ours, eager, 0.0) is None, f"{name} {number}"


@pytest.mark.parametrize("target", TARGETS)
def test_no_sum_of_products_is_minus_zero(target: str, tmp_path) -> None:
    """A sum from +0 on is none, and compilers that fuse its products into it (an FMA) leave the sign of the last that
    was too small for its type. Whatever the schedule: rows of any length, columns, windows, one row in parts."""
    small = torch.randn(2, 2100, 40, generator=GENERATOR) * 1e-25
    x, y = small

    def sums(axis: Any) -> Callable[..., Any]:
        return lambda x, y: ((x * y).sum(axis), (x * -1e-25).mean(axis), -(x * y * x).sum(axis),
                             (F.silu(x) * (x + 1) * 1e-30).sum(axis), (-(x * y)).sum(axis), (x * y).square().sum(axis),
                             (x - x.amax(axis, True)).mul(1e-25).sum(axis))

    def first(columns: int) -> tuple[torch.Tensor, ...]:
        return x[:, :columns].contiguous(), y[:, :columns].contiguous()

    functions = {
        "rows": (sums(1), (x, y)), "short rows": (sums(1), first(6)), "shorter rows": (sums(1), first(2)),
        "rows of one": (sums(1), first(1)), "wide": (sums(1), (x.double() * 1e-140, y.double() * 1e-140)),
        "columns": (sums(0), (x, y)), "few columns": (sums(0), first(3)), "few rows": (sums(0), (x[:5], y[:5])),
        "more rows": (sums(0), (x[:30], y[:30])), "middle": (sums(1), (x.reshape(3, 700, 40), y.reshape(3, 700, 40))),
        "short middle": (sums(1), (x.reshape(300, 7, 40), y.reshape(300, 7, 40))),
        "apart": (sums((0, 2)), (x.reshape(30, 70, 40), y.reshape(30, 70, 40))),
        "one row": (sums((0, 1)), first(40)), "little": (sums((0, 1)), (x[:3, :3], y[:3, :3])),
        "windows": (lambda x, y: [F.avg_pool2d(x * y, 2), F.avg_pool2d(x * 1e-25, (2, 3), (1, 2)), (x * y).cumsum(2),
                                  F.avg_pool2d(x * y, 3, 2, 1), F.avg_pool2d(x * y, 1)],
                    (x.reshape(1, 30, 70, 40), y.reshape(1, 30, 70, 40))),
    }
    natively = Natively(functions, target, tmp_path)
    for name, (function, inputs) in functions.items():
        for number, (ours, eager) in enumerate(zip(natively(name), function(*inputs), strict=True)):
            zero = eager == 0
            assert zero.any() or (name == "wide" and number), f"{name} {number}"
            assert torch.equal(ours[zero], eager[zero]), f"{name} {number}"
            assert torch.equal(ours[zero].signbit(), eager[zero].signbit()), f"{name} {number}"


def different(ours: torch.Tensor, expected: torch.Tensor, units: float) -> str | None:
    """None where values agree to so many units of the last place, in sign, infinities and NaN; else the first."""
    ours, expected = ours.reshape(-1), expected.reshape(-1)
    same = ours == expected
    if expected.is_floating_point():
        a, b = ours.double(), expected.double()
        information = torch.finfo(expected.dtype)
        spacing = information.eps * b.abs().nan_to_num(0, 0, 0).clamp_min(information.tiny)
        same = (a == b) | ((a - b).abs() <= units * spacing)
        same = (same & (torch.signbit(ours) == torch.signbit(expected))) | (ours.isnan() & expected.isnan())
    if bool(same.all()):
        return None
    place = int((~same).nonzero()[0])
    found, wanted = ours[place].item(), expected[place].item()
    return f"{int((~same).sum())} differ, first at {place}: {found!r} instead of {wanted!r}"


# Every scalar function ----------------------------------------------------------------------------

#: Arguments beyond those that vary.
PARAMETERS = {
    "leaky_relu": (0.01,), "elu": (1.3,), "celu": (1.7,), "softplus": (2.0, 20.0), "threshold": (0.5, 2.0),
    "softshrink": (0.5,), "hardshrink": (0.5,), "clamp_min": (-0.5,), "clamp_max": (0.5,),
    "nan_to_num": (0.5, 9.0, -9.0),
}
#: Units of the last place by which a function may be off the value of float64, 3 for all others; of what the function
#: subtracts where PyTorch's own subtracts it.
UNITS = {"gelu_erf": 12.0, "gelu_tanh": 12.0, "mish": 8.0, "softplus": 8.0, "logsigmoid": 8.0, "silu": 6.0,
         "sigmoid": 6.0, "elu": 6.0, "celu": 6.0, "selu": 6.0, "erf": 4.0}
#: Where eager itself has NaN for an infinite argument (0 times infinity) the limit is as good.
LIMITS = ("gelu_erf", "gelu_tanh", "silu", "mish", "hardswish", "softsign")


def arguments_of(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Edge values, of two arguments all pairs."""
    count = FUNCTIONS[name].arity - len(PARAMETERS.get(name, ()))
    if count == 3:
        return [(EDGES.repeat(2) > 0).to(dtype), EDGES.repeat(2).to(dtype), EDGES.flip(0).repeat(2).to(dtype)]
    grid = torch.cartesian_prod(*[EDGES] * count).reshape(-1, count)
    return [column.contiguous().to(dtype) for column in grid.unbind(1)]


@pytest.fixture(scope="module", params=TARGETS)
def functions(request, tmp_path_factory):
    """A function that applies a scalar function in a type: each is a kernel of its own."""
    sources = {}
    for name in FUNCTIONS:
        for dtype in ("float32", "float64"):
            given = arguments_of(name, getattr(torch, dtype))
            arguments = (*(load(n, 1) for n in range(len(given))), *map(Constant, PARAMETERS.get(name, ())))
            kernel = kernel_of((given[0].numel(),), (), outer_stores=[store(0, (1,), Apply(name, arguments))],
                               inputs=(dtype,) * len(given), outputs=(dtype,), compute=dtype)
            sources[name, dtype] = generate_kernel(kernel, f"{name}_{dtype}", request.param)
    library = compiled(list(sources.values()), request.param, tmp_path_factory.mktemp("functions"))

    def apply(name: str, dtype: str, given: list[torch.Tensor]) -> torch.Tensor:
        result = aligned(given[0].numel(), given[0].dtype)
        launch(library, sources[name, dtype], request.param, given, [result])
        return result

    return apply


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges_of_scalar_functions(name: str, dtype: str, functions) -> None:
    """Infinities, NaN and signs are eager's (in its type, or of float64 rounded to it), other values near float64's."""
    given = arguments_of(name, getattr(torch, dtype))
    ours = functions(name, dtype, given)
    extra = [torch.full_like(given[0], value) for value in PARAMETERS.get(name, ())]
    # Long enough that PyTorch takes its vectorised functions throughout, of which the last few elements are none.
    eager = FUNCTIONS[name].reference(*(torch.cat([t, t[:1].expand(64)]) for t in (*given, *extra)))
    eager = eager[:given[0].numel()].to(ours.dtype)
    exact = FUNCTIONS[name].reference(*(t.double() for t in (*given, *extra))).double()
    if name == "gelu_erf":  # what PyTorch's formula cancels to
        exact = given[0].double() * 0.5 * torch.erfc(-given[0].double() * 0.5**0.5)
    elif name == "erfcx":
        exact = erfcx(given[0].double())
    rounded = exact.to(ours.dtype)
    wrong = torch.zeros_like(ours, dtype=torch.bool)
    for value in (torch.isnan, torch.isposinf, torch.isneginf, lambda t: torch.signbit(t) & ~t.isnan()):
        has = [value(t) for t in (ours, eager, rounded)]
        wrong |= (has[0] != has[1]) & (has[0] != has[2])
    if name in LIMITS:
        wrong &= ~(given[0].isinf() & ~ours.isnan())
    if name in ("maximum", "minimum"):
        wrong &= ~((given[0] == 0) & (given[1] == 0))  # which of two zeros is taken, eager leaves to vectorisation
    information = torch.finfo(ours.dtype)
    size = torch.maximum(*(t.double().abs().nan_to_num(0, 0, 0) for t in (rounded, eager)))
    if "gelu" in name:
        size = torch.maximum(size, given[0].double().abs().nan_to_num(0, 0, 0).clamp_max(8.0) * 1e-2)
    if name.startswith("logaddexp"):  # the larger one and what is added to it, which may be its negative
        size = torch.maximum(size, given[0].double().abs().nan_to_num(0, 0, 0).clamp_max(1.0))
        wrong &= ~(exact.abs() <= information.eps)
    spacing = information.eps * size.clamp_min(information.tiny)
    # Some results below the usual numbers are zero, as in PyTorch on a GPU.
    error = torch.fmin((ours.double() - exact).abs(), (ours.double() - eager.double()).abs())
    allowed = UNITS.get(name, 3.0) * spacing + (4 * information.tiny if name in LIMITS or name == "sigmoid" else 0.0)
    finite = ours.isfinite() & (rounded.isfinite() | eager.isfinite())
    wrong |= finite & ~(error <= allowed)
    if wrong.any():
        place = int(wrong.nonzero()[0])
        found, theirs, true = (t[place].item() for t in (ours, eager, exact))
        point = [t[place].item() for t in given]
        pytest.fail(f"{name}{point} = {found!r}, eager {theirs!r}, float64 {true!r}; {int(wrong.sum())} differ")


def test_angles_of_every_size(tmp_path) -> None:
    """Of floats of every exponent, in rows of which some are vectorised, some not, and some are both."""
    angles = torch.cat([torch.arange(1, 256).float() * 2.0**power for power in range(-140, 119, 7)])
    angles = torch.cat([angles, -angles, torch.randn(1000, generator=GENERATOR)])
    table = angles[: angles.numel() // 32 * 32].reshape(-1, 32)
    functions: dict[str, Case] = {
        "points": (lambda x: (x.sin(), x.cos(), (x * 0.5).sin().cos()), (angles,)),
        "rows": (lambda x: (x.sin().amax(1), x.cos().sum(0), x.T.sin() * x.T), (table,)),
        "outside of loops": (lambda x: x.amax(1).sin(), (table,)),
        "double": (lambda x: (x.sin(), x.cos()), (angles.double(),)),
    }
    natively = Natively(functions, "cpp", tmp_path)
    for name, (function, inputs) in functions.items():
        exact = torch.utils._pytree.tree_leaves(function(*(i.double() for i in inputs)))
        for number, (ours, expected) in enumerate(zip(natively(name), exact, strict=True)):
            wrong = different(ours, expected.to(ours.dtype), 16.0 if name == "rows" and number == 1 else 2.0)
            assert wrong is None, (name, number, wrong)


# Numbers in expressions ---------------------------------------------------------------------------


def test_numbers_are_what_their_bits_are() -> None:
    number = {struct.pack("d", value): Constant(value) for value in (0.0, -0.0, 1.0, nan, inf)}
    assert len(set(number.values())) == 5 and Constant(nan) == Constant(float("nan"))
    assert len({Constant(1.0), Whole(1), Constant(0.0), Whole(0)}) == 4
    where = load(0, 1).index
    assert Load(0, where, otherwise=0.0) != Load(0, where, otherwise=-0.0)
    assert Load(0, where, otherwise=nan) == Load(0, where, otherwise=nan)
    kernels = [kernel_of((4,), (), outer_stores=[store(0, (1,), Apply("mul", (load(0, 1), Constant(zero))))])
               for zero in (0.0, -0.0)]
    assert kernels[0] != kernels[1] and isinstance(kernels[0], LoopKernel)


def test_products_are_all_that_end_in_one() -> None:
    """A function whose text ends in a product is among those that sums keep apart."""
    for name, row in FUNCTIONS.items():
        if row.text.startswith("({0} *") and "?" not in row.text:
            assert name in PRODUCTS, name
    assert not set(UNFUSED) & set(WHOLE_FUNCTIONS) - {"add", "sub"}
