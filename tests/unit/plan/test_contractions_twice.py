"""Contractions that are recomputed, so that a norm behind them reads nothing back: their plans."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_tools import Of, contractions, kinds, narrow_plan, planned
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, walk
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, KernelStep, Plan
from kernelwright.tune.contraction_recompute import pairs_of

IMAGE = (2, 4, 7, 9)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def image(**options: Any) -> nn.Module:
    return nn.Conv2d(4, 6, 3, **options)


def work(plan: Plan) -> list[str]:
    """The kernels and torch calls of a plan, those of a contraction that is recomputed by its pass."""
    named = [(k, s.pass_number if isinstance(s, KernelStep) else 0)
             for k, s in zip(kinds(plan), plan.steps, strict=True)]
    return [f"pass {number}" if number else kind for kind, number in named
            if kind not in ("reshape", "permute", "opaque")]


def log_sum(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    return torch.logsumexp(y + F.hardswish(torch.tanh(m.n(y))), 1, keepdim=True)


def excited(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = F.relu(m.a(x))
    return y * torch.sigmoid(m.b(y.mean((2, 3))))[:, :, None, None]


# By name: the function, its parts, its input, and the kernels.
DOUBLED: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[int, ...], list[str]]] = {
    "batch norm": (lambda m, x: m.n(m.a(x)) * 2, {"a": image(), "n": nn.BatchNorm2d(6)}, IMAGE,
                   ["pass 1", "LoopKernel", "pass 2"]),
    "batch norm of one entry": (lambda m, x: m.n(m.a(x)), {"a": image(), "n": nn.BatchNorm2d(6)}, (1, 4, 7, 9),
                                ["pass 1", "pass 2"]),
    "instance norm": (lambda m, x: m.n(m.a(x)) / 2, {"a": image(), "n": nn.InstanceNorm2d(6, affine=True)}, IMAGE,
                      ["pass 1", "pass 2"]),
    "group norm": (lambda m, x: m.n(torch.sigmoid((m.a(x) + m.b) * m.s)), {
        "a": image(), "n": nn.GroupNorm(3, 6), "b": torch.randn(6, 1, 1), "s": torch.randn(6, 1, 1)}, IMAGE,
        ["pass 1", "LoopKernel", "pass 2"]),
    "one group of all": (lambda m, x: m.n(m.a(x)), {"a": image(), "n": nn.GroupNorm(1, 6)}, IMAGE,
                         ["pass 1", "LoopKernel", "pass 2"]),
    "layer norm": (lambda m, x: m.n(m.a(x)), {"a": image(), "n": nn.LayerNorm((6, 5, 7))}, IMAGE,
                   ["pass 1", "LoopKernel", "pass 2"]),
    "groups of either kind": (lambda m, x: F.relu(m.n(m.a(x))), {
        "a": nn.ConvTranspose3d(4, 12, 2, stride=2, groups=2), "n": nn.GroupNorm(6, 12)}, (2, 4, 2, 1, 3),
        ["pass 1", "LoopKernel", "pass 2"]),
    "a pool behind": (lambda m, x: F.max_pool2d(m.n(m.a(x)) * m.s, (1, 2)).clamp(0, 1), {
        "a": image(), "n": nn.GroupNorm(3, 6), "s": torch.randn(6, 1, 1)}, (2, 4, 7, 10),
        ["pass 1", "LoopKernel", "pass 2"]),
    "a square pool behind": (lambda m, x: F.max_pool2d(m.n(m.a(x)), 2), {"a": image(), "n": nn.GroupNorm(3, 6)},
                             (2, 4, 7, 10), ["pass 1", "LoopKernel", "pass 2"]),
    "channels reduced behind": (log_sum, {"a": image(), "n": nn.GroupNorm(3, 6)}, IMAGE,
                                ["pass 1", "LoopKernel", "pass 2"]),
    "totals of the normalised": (lambda m, x: m.n(m.a(x)).tanh().mean((2, 3)), {
        "a": image(), "n": nn.InstanceNorm2d(6)}, IMAGE, ["pass 1", "pass 2"]),
    "squeezed and excited": (excited, {"a": image(), "b": nn.Linear(6, 6)}, IMAGE,
                             ["pass 1", "Contraction", "pass 2"]),
    "centred": (lambda m, x: m.a(x) - m.a(x).mean((2, 3), keepdim=True), {"a": image()}, IMAGE, ["pass 1", "pass 2"]),
    "the sums as well": (lambda m, x: (m.a(x), F.instance_norm(m.a(x))), {"a": image(bias=False)}, IMAGE,
                         ["pass 1", "pass 2"]),
    "a residual": (lambda m, x: F.instance_norm(m.a(x) + x).relu() + x, {"a": nn.Conv2d(4, 4, 3, padding=1)}, IMAGE,
                   ["pass 1", "pass 2"]),
    "an operand that is computed": (lambda m, x: F.instance_norm(m.a(F.pad(x, (1, 1)).relu())), {"a": image()}, IMAGE,
                                    ["pass 1", "pass 2"]),
    "two in a row": (lambda m, x: m.n(m.b(F.relu(F.instance_norm(m.a(x))))), {
        "a": image(), "b": nn.Conv2d(6, 4, 2), "n": nn.BatchNorm2d(4)}, IMAGE,
        ["pass 1", "pass 2", "pass 1", "LoopKernel", "pass 2"]),
    "one axis": (lambda m, x: m.n(F.gelu(m.a(x))), {"a": nn.Conv1d(4, 6, 2), "n": nn.BatchNorm1d(6)}, (3, 4, 8),
                 ["pass 1", "LoopKernel", "pass 2"]),
}


@pytest.mark.parametrize("name", DOUBLED)
def test_nothing_of_a_norm_is_read_back(name):
    function, parts, shape, kernels = DOUBLED[name]
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),), recompute=True)
    assert work(plan) == kernels
    pairs = pairs_of(plan)
    assert len(pairs) == kernels.count("pass 1")
    for node, pair in pairs.items():
        first, second = (s.kernel for s in pair.steps)
        assert first.position_reductions and all(uses_reductions(s.expression) for s in first.stores)
        sizes = {n.size for n in pair.first.outputs}
        assert max(sizes) <= node.shape[0] * node.shape[1]
        assert pair.first.covers[0] is pair.second.covers[0] is node
        assert pair.statistics and all(n.size <= node.shape[0] * node.shape[1] for n in pair.statistics)
        # Both form the same products of the same operands.
        assert (first.left, first.right, first.scheme) == (second.left, second.right, second.scheme)
        assert first.domain == second.domain
    once = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),))
    assert not any(s.pass_number for s in once.kernels) and len(contractions(once)) < len(contractions(plan))


ALONE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "a mean alone": (lambda m, x: F.gelu(m.a(x)).mean((2, 3)), {"a": image()}),
    "a mean beside the values": (lambda m, x: (F.gelu(m.a(x)), F.gelu(m.a(x)).mean((2, 3))), {"a": image()}),
    "no statistics": (lambda m, x: F.gelu(m.a(x)), {"a": image()}),
    "statistics of channels": (lambda m, x: m.a(x).softmax(1), {"a": image()}),
    "channels before totals": (lambda m, x: (m.a(x).softmax(1), F.instance_norm(m.a(x))), {"a": image()}),
    "statistics of rows": (lambda m, x: m.n(m.a(x)), {"a": nn.Conv2d(4, 4, 1), "n": nn.LayerNorm(9)}),
}


@pytest.mark.parametrize("name", ALONE)
def test_others_are_computed_once(name):
    function, parts = ALONE[name]
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(IMAGE),), recompute=True)
    once = planned(Of(function, **deepcopy(parts)), (torch.randn(IMAGE),))
    assert work(plan) == work(once) and not pairs_of(plan)
    assert len(contractions(plan)) == 1 and "Contraction" in work(plan)


def test_not_where_it_is_stored_without_reductions():
    model = Of(lambda m, x: F.instance_norm(m.a(x)), a=image())
    plan = planned(model, (torch.randn(IMAGE),), recompute=True, reduces=False)
    assert work(plan)[0] == "Contraction" and not pairs_of(plan)


def test_no_pair_where_the_second_kernel_cannot_have_the_statistics():
    """Entries and groups in one axis: nobody stores statistics for each channel, and the norm stays a pass."""
    def forward(m, x):
        y = m.a(x)
        z = y.reshape(y.shape[0] * 3, -1)
        return ((z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True)).reshape(y.shape)

    plan = planned(Of(forward, a=image()), (torch.randn(IMAGE),), recompute=True)
    assert not pairs_of(plan) and work(plan)[-1] == "LoopKernel"


def test_reductions_behind_the_second_may_stay_apart():
    graph = capture(Of(log_sum, a=image(), n=nn.GroupNorm(3, 6)), (torch.randn(IMAGE),))
    choice = KernelConfig("fp16x3", recompute=KernelConfig("fp16x3", reduces=False))
    plan = make_plan(graph, graph, move_bias=True, contractions={n: choice for n in graph.nodes() if can_contract(n)})
    assert work(plan) == ["pass 1", "LoopKernel", "pass 2", "LoopKernel"]
    assert not contractions(plan)[1].reductions


def test_each_kernel_has_a_form_of_its_own():
    graph = capture(Of(lambda m, x: F.instance_norm(m.a(x)), a=image()), (torch.randn(IMAGE),))
    choice = KernelConfig("fp16", 1, recompute=KernelConfig("fp16", 2))
    plan = make_plan(graph, graph, move_bias=True, contractions={n: choice for n in graph.nodes() if can_contract(n)})
    assert [(k.scheme, k.tiling) for k in contractions(plan)] == [("fp16", 1), ("fp16", 2)]


def test_a_reciprocal_deviation_is_stored_for_each_channel():
    """So that an epilogue has no square root at each of its points."""
    plan = planned(Of(lambda m, x: m.n(m.a(x)), a=image(), n=nn.GroupNorm(3, 6)), (torch.randn(IMAGE),), recompute=True)
    (pair,) = pairs_of(plan).values()
    assert sorted(n.size for n in pair.statistics) == [12, 12]
    second = pair.second.kernel
    functions = {e.function for s in second.stores for e in walk(s.expression) if isinstance(e, Apply)}
    assert functions <= {"add", "sub", "mul"}
    (loop,) = (s.kernel for s in plan.kernels if not isinstance(s.kernel, Contraction))
    assert len(loop.row_stores) == 2 and not any(s.copies for s in plan.kernels)


def test_a_reciprocal_is_stored_of_what_divides():
    """So that a softmax over positions has no division at each of its points."""
    def model(m, x):
        y = m.a(x).clamp(0, 1)
        return torch.softmax(y.flatten(2), 2).view(y.shape) * m.s, y.mean((2, 3), keepdim=True) / y

    plan = planned(Of(model, a=image(), s=torch.randn(6, 1, 1)), (torch.randn(IMAGE),), recompute=True)
    (pair,) = pairs_of(plan).values()
    functions = [[e.function for e in walk(s.expression) if isinstance(e, Apply)] for s in pair.second.kernel.stores]
    assert [f.count("div") for f in functions] == [0, 1] and "exp" in functions[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_values(dtype):
    graph = capture(Of(lambda m, x: m.n(F.gelu(m.a(x))), a=image(), n=nn.GroupNorm(3, 6)).to(dtype),
                    (torch.randn(IMAGE).to(dtype),))
    choice = KernelConfig("native", recompute=KernelConfig("native"))
    plan = make_plan(graph, graph, contractions={n: choice for n in graph.nodes() if can_contract(n)})
    (pair,) = pairs_of(plan).values()
    assert {n.dtype for n in pair.statistics} == {"float32"}
    assert pair.second.kernel.output_dtypes == (str(dtype).removeprefix("torch."),)
    assert not any(n.size == graph.outputs[0].size for s in plan.kernels for n in s.outputs if s is not pair.second)
    assert len(contractions(narrow_plan(lambda m, x: m.n(m.a(x)), dtype, IMAGE, a=image(),
                                        n=nn.GroupNorm(3, 6)))) == 1


def test_beside_a_convolution_that_is_channels_last():
    model = nn.Sequential(image(), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4))
    graph = capture(model, (torch.randn(IMAGE),))
    first, second = (n for n in graph.nodes() if n.op == "convolution")
    plan = make_plan(graph, graph, move_bias=True, channels_last=frozenset({second}),
                     contractions={first: KernelConfig("fp16x3", recompute=KernelConfig("fp16x3"))})
    assert pairs_of(plan).keys() == {first} and plan.channels_last == {second}


# Random ones --------------------------------------------------------------------------------------

POINTWISE: list[Callable[[Any], Any]] = [lambda y: y, torch.tanh, F.gelu, lambda y: y * 0.5 + 1, F.hardswish]


def drawn(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """A random convolution with something before its norm, a norm, and something behind it."""
    choose = random.Random(seed)
    axes = choose.choice([1, 2, 2, 3])
    groups = choose.choice([1, 1, 2])
    channels, transposed = choose.choice([4, 8, 12]), choose.random() < 0.4
    kind = [[nn.Conv1d, nn.Conv2d, nn.Conv3d], [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]]
    layer = kind[transposed][axes - 1](4, channels, choose.choice([2, 3]), stride=choose.choice([1, 2]),
                                       padding=choose.choice([0, 1]), groups=groups, bias=choose.random() < 0.7)
    batch = choose.choice([1, 2, 3])
    x = torch.randn(batch, 4, *(choose.choice([5, 6, 8]) for _ in range(axes)))
    norms = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][axes - 1], \
        [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][axes - 1]
    norm = choose.choice([norms[0](channels), norms[1](channels, affine=choose.random() < 0.5),
                          nn.GroupNorm(choose.choice([1, 2, 4]), channels), nn.GroupNorm(2, channels, affine=False)])
    before, behind = choose.choice(POINTWISE), choose.choice(POINTWISE)
    end = choose.choice(["", "", "channels", "pool", "residual", "mean", "sums"])

    def forward(m, x):
        y = before(m.a(x))
        z = behind(m.n(y))
        if end == "channels":
            return z.amax(1)
        if end == "pool" and axes == 2:
            return F.max_pool2d(z, 2)
        if end == "residual":
            return z + y
        if end == "mean":
            return z.flatten(2).mean(2)
        return (z, y) if end == "sums" else z

    return Of(forward, a=layer, n=norm), x


@pytest.mark.parametrize("seed", range(40))
def test_random_norms(seed):
    """The plan gives the model's values in float64, and has a pair wherever it has a convolution with totals."""
    torch.manual_seed(seed)
    model, x = drawn(seed)
    plan = planned(deepcopy(model), (x,), recompute=True)
    once = planned(deepcopy(model), (x,))
    assert bool(pairs_of(plan)) == any(k.position_reductions for k in contractions(once))
