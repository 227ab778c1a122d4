"""Reductions over positions that join a contraction's kernel: of whole planes, in halves, and over windows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_same, eager, run_plan, values_of
from plan_tools import Of, contractions, kinds, narrow_plan, planned
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.plan.contraction.positions import POOL_SIZES
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, Plan

IMAGE = (2, 4, 7, 5)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def image(**options: Any) -> nn.Module:
    return nn.Conv2d(4, 6, 3, **options)


def whole(kernel: Contraction) -> int:
    """How many results a kernel stores at every position."""
    return sum(not uses_reductions(s.expression) for s in kernel.stores)


def work(plan: Plan) -> list[str]:
    """The kernels and torch calls of a plan; views cost nothing."""
    return [k for k in kinds(plan) if k not in ("reshape", "permute", "opaque")]


# By name: the function, its parts, its input, the totals of its kernel, how many results that stores at every position
# and how many for each entry and channel, and how many kernels or torch calls follow.
TOTALS = {
    "mean": (lambda m, x: F.gelu(m.a(x)).mean((2, 3)), {"a": image()}, IMAGE, ["sum"], 0, 1, 0),
    "mean of bare sums": (lambda m, x: m.a(x).mean((2, 3), keepdim=True), {"a": image(bias=False)}, IMAGE, ["sum"], 0,
                          1, 0),
    "sum in one axis": (lambda m, x: m.a(x).flatten(2).sum(2), {"a": image()}, IMAGE, ["sum"], 0, 1, 0),
    "extrema": (lambda m, x: (m.a(x).amax((2, 3)), m.a(x).relu().amin((2, 3))), {"a": image()}, IMAGE, ["max", "min"],
                0, 2, 0),
    "variance": (lambda m, x: m.a(x).tanh().var((2, 3)), {"a": image()}, IMAGE, ["moments"], 0, 1, 0),
    "one axis": (lambda m, x: m.a(x).exp().mean(2), {"a": nn.Conv1d(4, 6, 3, groups=2)}, (3, 4, 9), ["sum"], 0, 1, 0),
    "three axes": (lambda m, x: m.a(x).abs().amax((2, 3, 4)), {"a": nn.Conv3d(4, 6, 2, padding=1)}, (2, 4, 3, 2, 4),
                   ["max"], 0, 1, 0),
    "transposed": (lambda m, x: m.a(x).clamp(-1, 1).sum((2, 3)), {
        "a": nn.ConvTranspose2d(4, 6, 3, stride=3, padding=1, output_padding=1, groups=2)}, IMAGE, ["sum"], 0, 1, 0),
    "positions before channels": (lambda m, x: F.gelu(m.a(x).flatten(2).transpose(1, 2) + m.p).mean(1),
                                  {"a": image(), "p": torch.randn(15, 6)}, IMAGE, ["sum"], 0, 1, 0),
    "permuted and apart": (lambda m, x: m.a(x).permute(2, 0, 3, 1).reshape(5, 2, 3, 2, 3).exp().amax((0, 2)),
                           {"a": image()}, IMAGE, ["max"], 0, 1, 0),
    "windows of one": (lambda m, x: m.a(x).square().mean((2, 3)), {"a": nn.Conv2d(4, 6, 1)}, IMAGE, ["sum"], 0, 1, 0),
    "average of everything": (lambda m, x: F.adaptive_avg_pool2d(F.relu(m.a(x)), 1).flatten(1), {"a": image()}, IMAGE,
                              ["sum"], 0, 1, 0),
    "the greatest of everything": (lambda m, x: F.max_pool2d(F.relu(m.a(x)), (5, 3)) * 2, {"a": image()}, IMAGE,
                                   ["max"], 0, 1, 0),
    "pointwise behind": (lambda m, x: torch.tanh(F.gelu(m.a(x)).mean((2, 3)) * 2 + m.b),
                         {"a": image(), "b": torch.randn(6)}, IMAGE, ["sum"], 0, 1, 0),
    "with a residual": (lambda m, x: (m.a(x) + m.b).relu().mean((2, 3)),
                        {"a": image(), "b": torch.randn(2, 6, 5, 3)}, IMAGE, ["sum"], 0, 1, 0),
    "the value as well": (lambda m, x: (F.gelu(m.a(x)), F.gelu(m.a(x)).mean((2, 3))), {"a": image()}, IMAGE, ["sum"], 1,
                          1, 0),
    "the sums as well": (lambda m, x: (m.a(x), F.gelu(m.a(x)).mean((2, 3))), {"a": image(bias=False)}, IMAGE, ["sum"],
                         1, 1, 0),
    "another reader": (lambda m, x: (F.gelu(m.a(x)).mean((2, 3)), F.gelu(m.a(x)).amax(3)), {"a": image()}, IMAGE,
                       ["sum"], 1, 1, 1),
    "instance norm": (lambda m, x: F.relu(m.n(F.gelu(m.a(x)))), {
        "a": image(), "n": nn.InstanceNorm2d(6, affine=True)}, IMAGE, ["moments"], 1, 2, 1),
    "centred": (lambda m, x: m.a(x) - m.a(x).mean((2, 3), keepdim=True), {"a": image()}, IMAGE, ["sum"], 1, 1, 1),
    "weighed": (lambda m, x: m.a(x).relu() * torch.sigmoid(m.a(x).relu().mean((2, 3), keepdim=True)), {"a": image()},
                IMAGE, ["sum"], 1, 1, 1),
}
# The same of reductions in halves.
HALVES = {
    "mean of everything": (lambda m, x: m.a(x).relu().mean(), {"a": image()}, IMAGE, ["sum"], 0, 1, 1),
    "sum over the batch": (lambda m, x: m.a(x).relu().sum((0, 2, 3)), {"a": image()}, IMAGE, ["sum"], 0, 1, 1),
    "maximum over channels": (lambda m, x: m.a(x).relu().amax((1, 2, 3), keepdim=True), {"a": image()}, IMAGE, ["max"],
                              0, 1, 1),
    "minimum in one axis": (lambda m, x: m.a(x).flatten(1).amin(1), {"a": image()}, IMAGE, ["min"], 0, 1, 1),
    "variance of everything": (lambda m, x: m.a(x).var(correction=0), {"a": image()}, IMAGE, ["moments"], 0, 2, 1),
    "deviation in one axis": (lambda m, x: m.a(x).flatten(1).std(1, keepdim=True), {"a": image()}, IMAGE, ["moments"],
                              0, 2, 1),
    "deviation in parts of axes": (lambda m, x: m.a(x).view(2, 3, -1).std(2, keepdim=True), {"a": image()}, IMAGE,
                                   ["moments"], 0, 2, 1),
    "group norm": (lambda m, x: m.n(F.gelu(m.a(x))), {"a": image(), "n": nn.GroupNorm(3, 6)}, IMAGE, ["moments"], 1, 2,
                   2),
    "group norm of groups": (lambda m, x: F.relu(m.n(m.a(x))), {
        "a": nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2), "n": nn.GroupNorm(2, 6)}, (2, 4, 2, 1, 3), ["moments"], 1,
        2, 2),
    "batch norm": (lambda m, x: F.relu(m.n(m.a(x))), {"a": image(), "n": nn.BatchNorm2d(6)}, IMAGE, ["moments"], 1, 2,
                   2),
    "batch norm after gelu": (lambda m, x: m.n(F.gelu(m.a(x))), {"a": nn.Conv1d(4, 6, 2), "n": nn.BatchNorm1d(6)},
                              (3, 4, 8), ["moments"], 1, 2, 2),
    "layer norm": (lambda m, x: m.n(m.a(x)), {"a": image(), "n": nn.LayerNorm((6, 5, 3))}, IMAGE, ["moments"], 1, 2, 2),
}


@pytest.mark.parametrize("name", [*TOTALS, *HALVES])
def test_totals_join(name):
    function, parts, shape, totals, at_positions, once, loops = {**TOTALS, **HALVES}[name]
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),))
    (kernel,) = contractions(plan)
    assert [r.kind for r in kernel.position_reductions] == totals and not kernel.reductions and not kernel.pools
    assert (whole(kernel), len(kernel.stores)) == (at_positions, at_positions + once)
    assert work(plan)[0] == "Contraction" and len(work(plan)) == 1 + loops
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),), reduces=False)
    assert not any(k.all_reductions for k in contractions(plan)) and len(plan.steps) > 1


def test_a_norm_of_one_entry_needs_no_second_half():
    plan = planned(Of(lambda m, x: m.n(m.a(x)), a=image(), n=nn.BatchNorm2d(6)), (torch.randn(1, 4, 7, 5),))
    (kernel,) = contractions(plan)
    # Its running statistics are results of totals, too.
    assert len(kernel.position_reductions) == 1 and len(kernel.stores) == 5 and work(plan) == ["Contraction",
                                                                                               "LoopKernel"]


def test_what_is_no_reduction_of_all_positions_stays_whole():
    cut = image(), IMAGE
    for function, layer, shape in (
            (lambda y: y.amax(3), *cut), (lambda y: y.amax((0, 2)), *cut), (lambda y: y.logsumexp((2, 3)), *cut),
            (lambda y: y[:, :, 1:].amax((2, 3)), *cut), (lambda y: F.pad(y, (1, 1)).amax((2, 3)), *cut),
            (lambda y: y.mT.amax(3), *cut), (lambda y: y.permute(1, 0, 2, 3).flatten(1, 2).amax(2), *cut),
            (lambda y: y.mT.reshape(2, 6, 5, 3).amax(3), *cut), (lambda y: y.amax((2, 3)), image(), (2, 4, 3, 3)),
            (lambda y: y.view(3, 4, 5, 3).flatten(0, 2).mean(1), *cut), (lambda y: y.roll(1, 3).sum((1, 3)), *cut),
            (lambda y: y.double().mean((2, 3)), *cut)):
        plan = planned(Of(lambda m, x, f=function: f(m.a(x)), a=layer), (torch.randn(shape),))
        assert not contractions(plan)[0].all_reductions and len(plan.steps) > 1
        graph = capture(Of(lambda m, x, f=function: f(m.a(x)), a=layer.float()), (torch.randn(shape),))
        chosen = {n: KernelConfig("fp16x3", reduces=False) for n in graph.nodes() if can_contract(n)}
        assert list(map(repr, make_plan(graph, graph, move_bias=True, contractions=chosen).steps)) == \
            list(map(repr, plan.steps))


def test_channels_come_before_positions():
    plan = planned(Of(lambda m, x: (m.a(x).softmax(1), m.a(x).mean((2, 3)), m.a(x).var()), a=image()),
                   (torch.randn(IMAGE),))
    (kernel,) = contractions(plan)
    assert kernel.reductions and not kernel.position_reductions
    rows = [prod(s.kernel.row) for s in plan.kernels if isinstance(s.kernel, LoopKernel)]
    assert 2 * 6 * 5 * 3 in rows  # the variance of everything stayed whole


def test_an_extremum_stays_with_its_place():
    plan = planned(Of(lambda m, x: tuple(m.a(x).relu().flatten(1).max(1)), a=image()), (torch.randn(IMAGE),))
    assert work(plan) == ["Contraction", "Extremum"] and not contractions(plan)[0].position_reductions


def test_a_reduction_of_two_contractions_joins_the_later():
    plan = planned(Of(lambda m, x: (m.a(x) + m.b(x)).relu().mean((2, 3)), a=image(), b=image()), (torch.randn(IMAGE),))
    first, second = contractions(plan)
    assert not first.position_reductions and len(second.position_reductions) == 1 and work(plan) == ["Contraction"] * 2


def test_reductions_of_one_first_half_are_all_covered():
    """None of them is alone with its second half, for which PyTorch would read the convolution's output again."""
    def forward(m, x):
        y = m.a(x)
        return y.amax((2, 3), keepdim=True), y.amax((1, 2, 3)), y.amax()

    plan = planned(Of(forward, a=image()), (torch.randn(IMAGE),))
    (kernel,) = contractions(plan)
    assert len(kernel.position_reductions) == len(kernel.stores) == 1 and not plan.kept
    assert [n["axes"] for n in plan.kernels[0].covers if n.op == "amax"] == [(2, 3), (1, 2, 3), (0, 1, 2, 3)]
    assert work(plan) == ["Contraction", "LoopKernel", "LoopKernel"]


def test_totals_of_normalised_values_do_not_join():
    def forward(m, x):
        y = m.a(x)
        y = y - y.mean((2, 3), keepdim=True)
        return y.abs().amax((2, 3)), m.b(y).amax((2, 3))

    plan = planned(Of(forward, a=image(), b=nn.Conv2d(6, 3, 2)), (torch.randn(IMAGE),))
    assert [[r.kind for r in k.position_reductions] for k in contractions(plan)] == [["sum"], ["max"]]


def test_squeeze_and_excitation():
    def forward(m, x):
        y = F.relu(m.a(x))
        return m.d(y * torch.sigmoid(m.c(F.relu(m.b(y.mean((2, 3))))))[:, :, None, None])

    plan = planned(Of(forward, a=image(), b=nn.Linear(6, 3), c=nn.Linear(3, 6), d=nn.Conv2d(6, 2, 3)),
                   (torch.randn(IMAGE),))
    assert work(plan) == ["Contraction"] * 4 and whole(contractions(plan)[0]) == 1


def test_a_network_that_trains():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1),
                          nn.GroupNorm(2, 6), nn.SiLU(), nn.ConvTranspose2d(6, 4, 2, stride=2), nn.BatchNorm2d(4),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    plan = planned(model, (torch.randn(3, 3, 8, 7),))
    assert [len(k.position_reductions) for k in contractions(plan)] == [1, 1, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_of_16_bit_values_are_not_rounded(dtype):
    name = str(dtype).removeprefix("torch.")
    parts = {"a": image(), "n": nn.GroupNorm(3, 6)}
    (kernel,) = contractions(narrow_plan(lambda m, x: m.n(F.gelu(m.a(x))), dtype, IMAGE, **deepcopy(parts)))
    assert kernel.output_dtypes == (name, "float32", "float32") and kernel.position_reductions
    (kernel,) = contractions(narrow_plan(lambda m, x: m.a(x).sum(), dtype, IMAGE, a=image()))
    assert kernel.output_dtypes == ("float32",)
    (kernel,) = contractions(narrow_plan(lambda m, x: m.a(x).amax(), dtype, IMAGE, a=image()))
    assert kernel.output_dtypes == (name,)


# Windows ------------------------------------------------------------------------------------------

WIDE = (2, 4, 9, 19)
# By name: the function, its parts, its input, the pools of its kernel and their size, and how many loops follow.
POOLS = {
    "greatest": (lambda m, x: F.max_pool2d(F.relu(m.a(x)), 2), {"a": image()}, WIDE, ["max"], 2, 1),
    "greatest of bare sums": (lambda m, x: F.max_pool2d(m.a(x), 4), {"a": image(bias=False)}, WIDE, ["max"], 4, 1),
    "average": (lambda m, x: F.avg_pool2d(F.gelu(m.a(x)), (3, 8)) * 2, {"a": image()}, WIDE, ["sum"], 8, 1),
    "average, equal parts": (lambda m, x: F.adaptive_avg_pool2d(m.a(x).tanh(), (7, 4)), {"a": image()},
                             (2, 4, 9, 18), ["sum"], 4, 0),
    "least": (lambda m, x: -F.max_pool2d(-m.a(x), 2), {"a": image()}, WIDE, ["max"], 2, 1),
    "one axis": (lambda m, x: F.max_pool1d(m.a(x).exp(), 2), {"a": nn.Conv1d(4, 6, 3)}, (2, 4, 9), ["max"], 2, 0),
    "three axes": (lambda m, x: F.avg_pool3d(m.a(x).exp(), 2), {"a": nn.Conv3d(4, 6, 2)}, (2, 4, 5, 6, 7), ["sum"], 2,
                   1),
    "the last axis, pointwise behind": (lambda m, x: torch.tanh(F.max_pool2d(m.a(x), (1, 2))) * m.s + 1,
                                        {"a": image(), "s": torch.randn(6, 7, 1)}, WIDE, ["max"], 2, 0),
    "the others overlap": (lambda m, x: F.max_pool2d(m.a(x), (3, 2), (2, 2), (1, 0), (2, 1)), {"a": image()}, WIDE,
                           ["max"], 2, 1),
    "average, the others are padded": (lambda m, x: F.avg_pool2d(m.a(x), (3, 2), (2, 2), (1, 0)), {"a": image()}, WIDE,
                                       ["sum"], 2, 1),
    "two pools": (lambda m, x: F.max_pool2d(m.a(x), 2) + F.avg_pool2d(m.a(x).exp(), 2), {"a": image()}, WIDE,
                  ["max", "sum"], 2, 1),
    "two pools of one value": (lambda m, x: (F.max_pool1d(m.a(x), 2), F.avg_pool1d(m.a(x), 2)),
                               {"a": nn.Conv1d(4, 6, 3)}, (2, 4, 9), ["max", "sum"], 2, 0),
    "groups": (lambda m, x: F.max_pool2d(m.a(x), 2), {"a": nn.Conv2d(4, 6, 3, groups=2)}, WIDE, ["max"], 2, 1),
    "two phases": (lambda m, x: F.max_pool2d(m.a(x).relu(), 2), {"a": nn.ConvTranspose2d(4, 6, 3, stride=(3, 2))},
                   (2, 4, 3, 5), ["max"], 2, 1),
    "two phases of lines": (lambda m, x: F.max_pool2d(m.a(x).relu(), 2), {"a": nn.ConvTranspose2d(4, 6, 3, stride=2)},
                            (2, 4, 3, 5), ["max"], 2, 1),
    "two phases of planes": (lambda m, x: F.avg_pool3d(m.a(x).relu(), 2), {"a": nn.ConvTranspose3d(4, 6, 3, stride=2)},
                             (2, 4, 3, 2, 5), ["sum"], 2, 1),
    "windows of one": (lambda m, x: F.max_pool2d(m.a(x) * m.s, 4), {"a": nn.Conv2d(4, 6, 1), "s": torch.randn(9, 1)},
                       WIDE, ["max"], 4, 1),
    "with a residual": (lambda m, x: F.max_pool2d(m.a(x) + x, 2), {"a": nn.Conv2d(4, 4, 3, padding=1)}, WIDE, ["max"],
                        2, 1),
}


#: Those of which a kernel takes two lines of each window, with the loops that are left.
OF_LINES = {"greatest": 0, "greatest of bare sums": 1, "least": 0, "three axes": 1, "two pools": 0, "groups": 0,
            "two phases of lines": 0, "two phases of planes": 0, "windows of one": 1, "with a residual": 0}


@pytest.mark.parametrize("name", POOLS)
def test_pools_join(name):
    function, parts, shape, pools, size, loops = POOLS[name]
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),))
    (kernel,) = contractions(plan)
    assert [r.kind for r in kernel.pools] == pools and kernel.pool_size == size
    assert kernel.pool_lines == (2 if name in OF_LINES else 1)
    assert kernel.pool_planes == (2 if name == "two phases of planes" else 1)
    assert work(plan) == ["Contraction"] + ["LoopKernel"] * OF_LINES.get(name, loops)
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),), lines=False)
    (kernel,) = contractions(plan)
    assert kernel.pool_lines == 1
    assert [r.kind for r in kernel.pools] == pools and kernel.pool_size == size
    assert not whole(kernel) and not kernel.reductions and not kernel.position_reductions
    assert work(plan) == ["Contraction"] + ["LoopKernel"] * loops
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),), reduces=False)
    assert not any(k.all_reductions for k in contractions(plan)) and len(plan.steps) > 1


REFUSED: dict[str, tuple[Callable[..., Any], nn.Module]] = {
    "padding": (lambda y: F.max_pool2d(y, 2, padding=1), image()),
    "padding of the last axis": (lambda y: F.avg_pool2d(y, 2, padding=(0, 1)), image()),
    "overlapping windows": (lambda y: F.max_pool2d(y, 4, 2), image()),
    "windows apart": (lambda y: F.max_pool2d(y, 2, 3), image()),
    "dilation": (lambda y: F.max_pool2d(y, 2, 2, 0, (1, 2)), image()),
    "rounded up": (lambda y: F.max_pool2d(y, 2, ceil_mode=True), image()),
    "windows of three": (lambda y: F.max_pool2d(y, 3), image()),
    "three phases": (lambda y: F.max_pool2d(y, 2), nn.ConvTranspose2d(4, 6, 3, stride=(2, 3))),
    "another reader": (lambda y: (F.max_pool2d(y, 2), y[:, :, 1]), image()),
    "the value itself": (lambda y: (F.max_pool2d(y, 2), y), image()),
    "pools of two sizes": (lambda y: (F.max_pool2d(y, 2), F.max_pool2d(y, 4)), image()),
    "other axes": (lambda y: F.max_pool2d(y.mT, 2), image()),
    "a part": (lambda y: F.max_pool2d(y[:, :, :, 1:], 2), image()),
    "places": (lambda y: F.max_pool2d(y, 2, return_indices=True)[1], image()),
    "a plane read again": (lambda y: F.interpolate(F.max_pool2d(y, (1, 2)), size=y.shape[2:]) + y, image()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_pools_stay_whole(name):
    function, layer = REFUSED[name]
    model = Of(lambda m, x: function(F.relu(m.a(x))), a=deepcopy(layer))
    plan = planned(model, (torch.randn(WIDE),))
    assert not contractions(plan)[0].all_reductions and len(plan.steps) > 1
    assert [n.op for s in plan.kernels if isinstance(s.kernel, Contraction) for n in s.outputs] == ["relu"]


@pytest.mark.parametrize("size", POOL_SIZES)
@pytest.mark.parametrize("left", [0, 1])
def test_positions_that_fill_no_window_are_left_out(size: int, left: int):
    plan = planned(Of(lambda m, x: F.max_pool1d(m.a(x), size), a=nn.Conv1d(4, 6, 1)),
                   (torch.randn(2, 4, 3 * size + left),))
    (kernel,) = contractions(plan)
    assert kernel.pooled_domain == (2, 1, 6, 3) and kernel.domain[-1] == 3 * size + left


def test_values_that_are_not_finite():
    model = Of(lambda m, x: (F.max_pool2d(m.a(x), 2), F.relu(m.b(x)).mean((2, 3)), m.b(x).amax()), a=image(), b=image())
    x = torch.randn(WIDE)
    graph = capture(model, (x,))
    chosen = {n: KernelConfig("fp16x3") for n in graph.nodes() if can_contract(n)}
    plan = make_plan(graph, graph, move_bias=True, contractions=chosen)
    assert [bool(k.all_reductions) for k in contractions(plan)] == [True, True]
    x[0, 0, 0, 0], x[1, 2, 8, 18] = float("nan"), float("inf")
    expected, _ = eager(model.double(), (x.double(),))
    found, _ = run_plan(plan, values_of(model, graph, (x.double(),)))
    assert_same(tuple(found), expected, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pools_of_16_bit_values(dtype):
    name = str(dtype).removeprefix("torch.")
    (kernel,) = contractions(narrow_plan(lambda m, x: F.max_pool2d(m.a(x), 2), dtype, WIDE, a=image()))
    assert kernel.pools and kernel.output_dtypes == (name,)
    average = narrow_plan(lambda m, x: F.avg_pool2d(m.a(x), 2), dtype, WIDE, lines=False, a=image())
    assert contractions(average)[0].pools and contractions(average)[0].output_dtypes == ("float32",)
    average = narrow_plan(lambda m, x: F.avg_pool2d(m.a(x), 2), dtype, WIDE, a=image())
    assert contractions(average)[0].pool_lines == 2 and contractions(average)[0].output_dtypes == (name,)


def test_totals_beside_a_convolution_that_is_channels_last():
    model = nn.Sequential(image(), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(IMAGE)
    graph = capture(model, (x,))
    first, second = (n for n in graph.nodes() if n.op == "convolution")
    plan = make_plan(graph, graph, move_bias=True, channels_last=frozenset({second}),
                     contractions={first: KernelConfig("fp16x3")})
    (kernel,) = contractions(plan)
    assert len(kernel.position_reductions) == 1 and plan.channels_last == {second}
    expected, _ = eager(model.double(), (x.double(),))
    with torch.no_grad():
        found, _ = run_plan(plan, values_of(model, graph, (x.double(),)))
    assert_same(found[0], expected, 1e-9)
