"""Stage 5, PLAN: pools of few elements are computed by the reduction that reads them, and stay pools elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st
from plan_tools import Of, contractions, planned
from test_planner import check_model
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import run_plan
from kernelwright.ir.node import walk
from kernelwright.plan.fusion.small_pools import inlined
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.lowering.lower import lower
from kernelwright.plan.roles import roles_of

INLINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean of maxima": lambda x: F.max_pool2d(x, 2).mean((2, 3)),
    "pointwise between": lambda x: F.hardtanh(F.max_pool2d(x.exp(), 2) * 0.5).sum((2, 3)).tanh(),
    "sum of averages": lambda x: F.avg_pool2d(x, (1, 4)).sigmoid().sum(1),
    "log of sums": lambda x: F.max_pool2d(x, (2, 4)).logsumexp(1),
    "a part is left": lambda x: F.max_pool2d(x, 3, 4).amax((2, 3)),
    "dilated": lambda x: F.max_pool2d(x, 2, 3, 0, 2).sum(3),
    "reshaped": lambda x: F.avg_pool2d(x, 2).flatten(1).sum(1),
    "across": lambda x: F.max_pool2d(x, 2).transpose(1, 3).sum(1),
}
POINTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a result": lambda x: F.max_pool2d(x, (2, 1)), "then pointwise": lambda x: F.avg_pool2d(x, (4, 1)).sigmoid() + 1,
    "in space": lambda x: F.max_pool3d(x.unsqueeze(1), (1, 3, 1)).relu(),
    "before a call": lambda x: torch.sort(F.max_pool2d(x, (2, 1)).relu(), 1)[0].cos(),
    "lines of a softmax": lambda x: F.softmax(F.max_pool2d(x, (2, 1)), 1),
}
KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "overlap": lambda x: F.max_pool2d(x, 3, 2).mean((2, 3)),
    "padding": lambda x: F.max_pool2d(x, 2, 2, 1).mean((2, 3)),
    "many elements": lambda x: F.avg_pool2d(x, (3, 4)).sum((2, 3)),
    "a result": lambda x: F.max_pool2d(x, 2).relu(),
    "a result, too": lambda x: (lambda y: (y, y.sum(1)))(F.max_pool2d(x, 2)),
    "read twice": lambda x: (lambda y: y.mean((2, 3)) * y.amax((2, 3)))(F.max_pool2d(x, 2)),
    "softmax": lambda x: F.softmax(F.max_pool2d(x, 2), 1),
    "variance": lambda x: F.max_pool2d(x, 2).var((2, 3), correction=0),
    "pool of a pool": lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2),
    "repeated": lambda x: (F.max_pool2d(x, 2)[..., :1] * x[:, :, :6, :5]).sum(1),
    "repeated lines": lambda x: F.max_pool2d(x, (2, 1))[:, :1] * x[:, :, :6] + 1,
    "lines of a pool": lambda x: F.max_pool2d(F.max_pool2d(x, (2, 1)), 2),
}


def _rows(model: nn.Module, x: torch.Tensor) -> list[tuple[int, ...]]:
    """The rows of the plan's loops, which is checked in float64."""
    return [step.kernel.row for step in check_model(model, (x,)).kernels if isinstance(step.kernel, LoopKernel)]


@pytest.mark.parametrize("name", INLINED)
def test_a_reduction_computes_small_pools(name: str) -> None:
    rows = _rows(Of(lambda m, x: INLINED[name](x * 2)), torch.randn(2, 3, 8, 12))
    assert len(rows) == 1, "the pool is no kernel of its own"


@pytest.mark.parametrize("name", KEPT)
def test_other_pools_stay(name: str) -> None:
    rows = _rows(Of(lambda m, x: KEPT[name](x * 2)), torch.randn(2, 3, 13, 12))
    windows = {"overlap": (3, 3), "many elements": (3, 4), "lines of a pool": (2,),
               "repeated lines": (2,)}
    assert windows.get(name, (2, 2)) in rows


@pytest.mark.parametrize("name", POINTWISE)
def test_pools_of_lines_are_pointwise(name: str) -> None:
    assert () in _rows(Of(lambda m, x: POINTWISE[name](x * 2)), torch.randn(2, 3, 13, 12))


def test_lines_are_pooled_in_the_rows_of_the_norm_that_reads_them() -> None:
    """What is as cheap as a sum is computed beside the norm's moments, and stored by their kernel if at all."""
    rows = _rows(Of(lambda m, x: F.instance_norm(F.avg_pool2d(x * 2, (2, 1)) + 1)), torch.randn(2, 3, 13, 12))
    assert rows == [(6, 12)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_16_bits_are_in_float32(dtype: torch.dtype) -> None:
    """As those of a kernel of its own: not rounded on the way, and begun with a zero."""
    graph = capture(Of(lambda m, x: F.avg_pool2d(x, 2).sum(1)), (torch.randn(2, 3, 8, 8, dtype=dtype),))
    lowered, _ = lower(graph.outputs, frozenset())
    roots = [lowered[n] for n in graph.outputs]
    moved, stored = inlined(roots, roles_of(walk(roots), set(), ()), ())
    assert not stored
    adds = [n for n in walk([moved[n] for n in roots]) if n.op == "add"]
    assert len(adds) == 4 and all(n.dtype == "float32" for n in adds)


@pytest.mark.parametrize("pool", [lambda x: F.avg_pool2d(x, 1), lambda x: F.avg_pool2d(x, (2, 1)),
                                  lambda x: F.avg_pool2d(x, 2).amax(1)])
def test_averages_of_negative_zeros_are_positive(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Sums begin with a zero, also those of one element."""
    model = Of(lambda m, x: pool(-x.relu()).neg())
    plan = planned(model, (torch.randn(2, 3, 4, 4),))
    found, _ = run_plan(plan, {"inputs_0": torch.full((2, 3, 4, 4), -1.0)})
    assert len(plan.kernels) == 1 and bool(found[0].signbit().all())


@examples(60)
@given(st.data())
def test_any_small_pool(data: st.DataObject) -> None:
    """Of any rank, kernel, stride, padding and dilation, sizes rounded down or up; infinities and NaN included."""
    rank = data.draw(st.integers(1, 3))
    kernel = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    maximum = data.draw(st.booleans())
    dilation = tuple(data.draw(st.integers(1, 2)) if maximum else 1 for _ in range(rank))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    stride = tuple(data.draw(st.integers(max(1, r - 1), r + 1)) for r in reach)
    shape = (2, 3, *(r + data.draw(st.integers(0, 7)) for r in reach))
    name = ("max_pool" if maximum else "avg_pool") + f"{rank}d"
    pool = getattr(F, name)
    options: dict[str, Any] = {"dilation": dilation} if maximum else {
        "count_include_pad": data.draw(st.booleans())}
    if rank > 1 and not maximum:
        options["divisor_override"] = data.draw(st.sampled_from((None, 7)))
    options["ceil_mode"] = data.draw(st.booleans())
    options["padding"] = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    axes = data.draw(st.sampled_from([(1,), tuple(range(2, 2 + rank)), tuple(range(1, 2 + rank)), (1 + rank,)]))
    op = data.draw(st.sampled_from(("sum", "amax", "amin", "mean")))
    x = torch.randn(shape)
    for value in data.draw(st.lists(st.sampled_from((inf, -inf, nan)), max_size=2)):
        x.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = value
    check_model(Of(lambda m, x: getattr(pool(x * 2, kernel, stride, **options).relu(), op)(axes)), (x,))


@pytest.mark.parametrize(("pool", "is_kernel"), [
    (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), True), (lambda x: F.max_pool1d(x[0], 2, ceil_mode=True), True),
    (lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True), True),
    (lambda x: F.avg_pool2d(x, 3, 2, 1), True), (lambda x: F.avg_pool2d(x, (1, 3), ceil_mode=True), True),
    (lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3), True),
    (lambda x: F.avg_pool2d(x, 2, ceil_mode=True), True),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), True),
    (lambda x: F.avg_pool3d(x[None], (1, 3, 2), 2, (0, 1, 1), True, False), True)])
def test_windows_that_reach_beyond(pool: Callable[[torch.Tensor], torch.Tensor], is_kernel: bool) -> None:
    """As the last ones do of sizes that are rounded up; averages are of fewer elements there, or with fewer."""
    plan = check_model(Of(lambda m, x: pool(x * 2).neg()), (torch.randn(2, 3, 13, 12),))
    assert is_kernel == any(n.op in ("max_pool", "average_pool") for step in plan.kernels for n in step.covers)


@examples(25)
@given(st.data())
def test_windows_of_several_sizes(data: st.DataObject) -> None:
    """Adaptive averages whose windows overlap and differ in size; infinities and NaN stay in those that have them."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 7)) for _ in range(rank))
    size = tuple(data.draw(st.integers(1, 8)) for _ in range(rank))
    x = torch.randn(2, 3, *shape)
    for value in data.draw(st.lists(st.sampled_from((inf, -inf, nan)), max_size=2)):
        x.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = value
    plan = check_model(Of(lambda m, x: getattr(F, f"adaptive_avg_pool{rank}d")(x * 2, size).neg() * 3), (x,))
    assert not any(n.op == "adaptive_average_pool" for n in plan.kept)


@examples(30)
@given(st.data())
def test_folded(data: st.DataObject) -> None:
    """Windows that overlap, leave gaps, reach into the padding, and lie side by side."""
    kernel, stride, dilation, padding = (tuple(data.draw(st.integers(low, high)) for _ in range(2))
                                         for low, high in ((1, 3), (1, 3), (1, 2), (0, 1)))
    size = tuple(d * (k - 1) + 1 + data.draw(st.integers(0, 5)) for k, d in zip(kernel, dilation, strict=True))
    blocks = [(n + 2 * p - d * (k - 1) - 1) // s + 1
              for n, p, d, k, s in zip(size, padding, dilation, kernel, stride, strict=True)]
    x = torch.randn(2, 2 * kernel[0] * kernel[1], blocks[0] * blocks[1])
    for value in data.draw(st.lists(st.sampled_from((inf, -inf, nan)), max_size=2)):
        x.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = value
    plan = check_model(Of(lambda m, x: F.fold(x * 2, size, kernel, dilation, padding, stride).neg() * 3), (x,))
    assert not any(n.op == "fold" for n in plan.kept)


def test_behind_a_convolution_the_rest_of_a_pool_joins_the_reduction() -> None:
    """The kernel takes pairs along the last axis, the reduction those along the others."""
    model = Of(lambda m, x: F.hardtanh(F.max_pool2d(m.conv(x), 2)).mean((2, 3)).tanh(),
               conv=nn.Conv2d(4, 8, 3, padding=1))
    plan = planned(model, (torch.randn(2, 4, 16, 16),))
    (kernel,) = contractions(plan)
    assert kernel.pool_size == 2
    (loop,) = [step.kernel for step in plan.kernels if isinstance(step.kernel, LoopKernel)]
    assert loop.row == (8, 8) and loop.outer == (2, 8)
    assert {n.op for step in plan.kernels for n in step.covers} >= {"max_pool", "convolution", "mean", "tanh"}
