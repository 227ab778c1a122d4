"""Channels last: the same values with convolutions in another memory order, and copies only where they must be."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emitted_tools import short_budgets
from graph_tools import MORE, assert_same, eager, filled, graph_of, random_values, run_plan, values_of
from torch import nn

import kernelwright
from kernelwright import programs, selection, verified
from kernelwright.algebra.collapse import cast
from kernelwright.algebra.engine import Rewriting
from kernelwright.capture.export import capture
from kernelwright.codegen.generate import generate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, constant, make
from kernelwright.modes import ModeProgram
from kernelwright.plan.expressions import Load
from kernelwright.plan.layouts.channels_last import can_be_channels_last
from kernelwright.plan.layouts.orders import channels_last, reshaped_order, transposed
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan, TorchStep
from kernelwright.progress import Progress
from kernelwright.report.text import render_text
from kernelwright.roofline.devices import GENERIC_CPU, H200
from kernelwright.settings import Settings
from kernelwright.tune import budget, layouts
from kernelwright.tune.regions import Untried
from kernelwright.tuned import Tuning


def convolutions(graph: Graph) -> frozenset[Node]:
    return frozenset(n for n in graph.nodes() if can_be_channels_last(n))


def check(model: nn.Module, *inputs: torch.Tensor, chosen: Any = convolutions, kept: Any = lambda graph: {},
          move_bias: bool = False) -> Plan:
    """Plan channels-last, run, and compare results, their strides and buffers with eager in float64."""
    model, inputs = model.double(), tuple(x.double() for x in inputs)
    graph = capture(model, inputs)
    plan = make_plan(graph, graph, kept(graph), move_bias=move_bias, channels_last=chosen(graph))
    expected, buffers = eager(model, inputs)
    torch.manual_seed(0)
    with torch.no_grad():
        found, after = run_plan(plan, values_of(model, graph, inputs))
    assert_same(filled(graph.structure, found), expected, 1e-9)
    for name, tensor in buffers.items():
        assert_same(after[name], tensor, 1e-9, f"buffer {name}")
    with torch.no_grad():
        before, _ = run_plan(make_plan(graph, graph, move_bias=move_bias), values_of(model, graph, inputs))
    assert list(map(strides, found)) == list(map(strides, before)), "results must lie in memory as they did"
    assert all(step.covers for step in plan.kernels)
    return plan


def strides(tensor: torch.Tensor) -> list[int]:
    """The strides that mean something."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def kinds(plan: Plan) -> list[str]:
    """What runs, without views; copies by that name."""
    return [("copy" if s.copies else "kernel") if isinstance(s, KernelStep) else s.node.op for s in plan.steps
            if isinstance(s, KernelStep) or s.node.kind != "view"]


class Net(nn.Module):
    """A function of (modules, inputs...) as a module."""

    def __init__(self, function: Any, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.parts, *inputs)


# Chains ------------------------------------------------------------------------------------------


def test_a_chain_stays_channels_last() -> None:
    """conv, pointwise, conv, pointwise: the input is copied once, and the last kernel writes (N, C, H, W)."""
    model = Net(lambda m, x: F.gelu(m[1](F.relu(m[0](x)) * 2)) + 1, nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
    for move_bias in (False, True):
        plan = check(model, torch.randn(2, 3, 9, 8), move_bias=move_bias)
        assert kinds(plan) == ["copy", "convolution", "kernel", "convolution", "kernel"]
        assert [s.outputs[0].shape for s in plan.kernels] == [(2, 9, 8, 3), (2, 7, 6, 8), (2, 4, 5, 4)]


def test_a_kernel_before_writes_channels_last() -> None:
    plan = check(Net(lambda m, x: m[0](F.silu(x) * 2).sigmoid() * 2, nn.Conv2d(5, 4, 3)), torch.randn(2, 5, 6, 7))
    assert kinds(plan) == ["kernel", "convolution", "kernel"]


def test_residuals_branches_and_concatenation() -> None:
    def function(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(m[0](x)) * 0.5
        y = F.relu(m[1](x)) + x
        return m[2](torch.cat([y, F.gelu(m[1](y)) * 2], 1)).tanh() * 2

    model = Net(function, nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(12, 4, 3))
    plan = check(model, torch.randn(2, 3, 7, 7))
    assert kinds(plan).count("copy") == 1
    assert [s.transposes for s in plan.kernels] == [True, *[False] * (len(plan.kernels) - 2), True]


def test_a_bias_in_front_of_a_norm_is_left_out() -> None:
    """A training batch norm and moments do not see it, and a mean gets it afterwards: in float32, elements plus a
    bias would all be rounded the same way."""
    model = Net(lambda m, x: m[1](m[0](x)).relu(), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    plan = check(model, torch.randn(2, 3, 9, 8), move_bias=True)
    assert [len(s.node.inputs) for s in plan.steps if isinstance(s, TorchStep) and s.node.op == "convolution"] == [2]
    moments, = plan.kernels[-1].kernel.reductions
    assert isinstance(moments.expression, Load), "of the convolution without its bias"
    model = Net(lambda m, x: (y := m[0](x)).mean((0, 2, 3)) + y.var((0, 2, 3), correction=0), nn.Conv2d(3, 8, 3))
    check(model, torch.randn(2, 3, 9, 8), move_bias=True)
    both = Net(lambda m, x: (m[1](y := m[0](x)).relu(), y.mean((0, 2, 3)), y.sigmoid() * 2),
               nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    check(both, torch.randn(2, 3, 9, 8), move_bias=True)  # another reader needs the bias


def test_library_calls_in_between_need_no_copy() -> None:
    """Pools and training norms that stay torch calls work on permuted tensors."""
    def function(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(m[1](m[0](x)), 2)
        return m[3](F.avg_pool2d(F.relu(m[2](x)), 2)).relu() * 2

    model = Net(function, nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 4, 2)).train()
    plan = check(model, torch.randn(2, 3, 14, 14), kept=lambda graph: {
        n: "kept" for n in graph.nodes() if n.kind in ("norm", "window") or n.op == "relu"})
    assert {"batch_norm_training", "max_pool", "average_pool", "relu"} <= set(kinds(plan))
    assert kinds(plan).count("copy") == 1


def test_flattened_positions_need_no_copy() -> None:
    """conv, flatten, transpose, linear (patch embedding): the matrix is what the convolution wrote."""
    model = Net(lambda m, x: m[1](m[0](x).flatten(2).transpose(1, 2)) * 2 + 1, nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5))
    plan = check(model, torch.randn(2, 3, 8, 8))
    assert kinds(plan)[:3] == ["copy", "convolution", "linear"]


def test_only_chosen_convolutions_change() -> None:
    model = Net(lambda m, x: m[1](F.relu(m[0](x)) * 2).relu() * 2, nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
    plan = check(model, torch.randn(2, 3, 9, 8), chosen=lambda graph: frozenset(
        n for n in convolutions(graph) if n.inputs[0].shape[1] == 8))
    assert kinds(plan) == ["convolution", "kernel", "convolution", "kernel"]
    assert [s.outputs[0].shape for s in plan.kernels] == [(2, 7, 6, 8), (2, 4, 5, 4)]
    nothing = check(model, torch.randn(2, 3, 9, 8), chosen=lambda graph: frozenset())
    assert not any(isinstance(s, TorchStep) and s.node.op == "reordered" for s in nothing.steps)


def test_what_can_not_be_channels_last() -> None:
    shapes = {"x": (2, 4, 8), "w": (4, 4, 3)}
    x, w = (make("input", name=n, shape=s, dtype="float32") for n, s in shapes.items())
    lines = make("convolution", x, w, stride=(1,), padding=(0,), dilation=(1,), groups=1, transposed=False,
                 output_padding=(0,))
    assert not can_be_channels_last(lines)


# Results -----------------------------------------------------------------------------------------

RESULTS = {
    "convolution": lambda m, x: m[0](x), "both": lambda m, x: ((y := F.relu(m[0](x)) * 2), m[1](y)),
    "view": lambda m, x: m[0](x).permute(0, 2, 3, 1), "slice": lambda m, x: m[0](x)[:, 1:3],
    "flat": lambda m, x: (m[0](x) * 2).flatten(1), "flat convolution": lambda m, x: m[0](x).flatten(1),
    "kept pool": lambda m, x: F.avg_pool2d(m[0](x), 3, 2, 1, False, False), "mean": lambda m, x: m[0](x).mean((2, 3)),
    "mean and value": lambda m, x: ((y := m[0](x)).mean((2, 3), keepdim=True) * 2, y.sum(1), y),
    "truth": lambda m, x: (m[0](x) > 0.1, m[0](x) * 2), "shuffle": lambda m, x: F.pixel_shuffle(m[0](x), 2) * 2,
    "interpolate": lambda m, x: m[1](F.interpolate(F.relu(m[0](x)), scale_factor=2)) * 2,
    "bilinear": lambda m, x: m[1](F.interpolate(F.relu(m[0](x)), scale_factor=2, mode="bilinear")) * 2,
    "bordered": lambda m, x: m[1](F.pad(F.relu(m[0](x)), (1, 2, 1, 0), mode="reflect")) * 2,
    "chosen": lambda m, x: m[1](F.relu(m[0](x)).index_select(2, torch.tensor([3, 1, 1]))) * 2 + 1,
    "gathered": lambda m, x: m[1](torch.gather(m[0](x), 3, (x > 0).long())) * m[0](x)[:, :1],
    "softmax": lambda m, x: F.softmax(m[0](x), 1).sigmoid(), "logsumexp": lambda m, x: torch.logsumexp(m[0](x), 1) * 2,
    "group norm": lambda m, x: F.relu(F.group_norm(m[0](x), 2)), "instance": lambda m, x: F.instance_norm(m[0](x)) / 2,
    "minimum": lambda m, x: m[0](x).amin(1, keepdim=True).tanh().tanh(), "shuffled channels":
    lambda m, x: m[1](m[0](x).view(2, 2, 2, 8, 8).transpose(1, 2).reshape(2, 4, 8, 8) * 2) + 1,
    "lower rank": lambda m, x: m[0](x) * m[0].weight[:, :1, :1, 0] + m[0].bias.view(4, 1, 1),
    "linear of positions": lambda m, x: m[0](x).permute(0, 2, 3, 1) @ m[0].weight[:, :, 0, 0],
    "norm of positions": lambda m, x: F.layer_norm(m[0](x).permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2) * 2,
    "dropout": lambda m, x: m[1](F.dropout(m[0](x), 0.5, training=True) * 2),
    "random": lambda m, x: m[0](x) * torch.rand_like(m[0](x)), "cumsum": lambda m, x: m[1](m[0](x).cumsum(2) * 2) + 1,
    "input twice": lambda m, x: m[0](x) + m[0](x * 2) * x.sum(1, keepdim=True),
    "sizes": lambda m, x: m[0](x)[:, :, :1, :1] * 2 + m[1](m[0](x)[:, :, ::2, 1:]).sum(),
    "expanded": lambda m, x: m[1](x[:, :1].expand(2, 4, 8, 8)) * 2, "padded": lambda m, x: m[1](F.pad(m[0](x), (1, 1))),
    "flip": lambda m, x: m[1](m[0](x).flip(1, 3) * 2) + 1, "roll": lambda m, x: m[1](m[0](x).roll((1, 2), (3, 1))) * 2,
    "padded in front": lambda m, x: F.relu(F.pad(m[0](x) * 2, (1, 0, 2, 1, 0, 3), value=0.5)) + 1, "nearest":
    lambda m, x: F.interpolate(m[0](x), scale_factor=2) * F.interpolate(m[1](x), scale_factor=2), "nearest result":
    lambda m, x: F.interpolate(m[0](x) * 2, scale_factor=(2, 3)), "triangle": lambda m, x: m[1](m[0](x).tril()) * 2,
    "diagonal": lambda m, x: m[0](x).diagonal(0, 2, 3) * 2, "windows": lambda m, x: m[0](x).unfold(2, 3, 2).sum(-1) * 2,
    "many pieces": lambda m, x: m[1](torch.cat([(y := m[0](x)), y * 2, x, y.abs(), y[:, :1], y], 1)[:, 3:7] * 2) + 1,
    "pieces along space": lambda m, x: m[1](torch.cat([m[0](x).relu() * 2, x], 2)) + 1,
    "running sum": lambda m, x: m[1](m[0](x).cumsum(1).relu()) * 2,
    "norm of space": lambda m, x: F.layer_norm(m[0](x), (4, 8, 8)).relu(), "unfold":
    lambda m, x: F.unfold(m[0](x), 2) * 2, "channel mean": lambda m, x: (m[0](x) - m[0](x).mean(1, True)).square(),
}


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_conversions_keep_their_order(dtype: str) -> None:
    x, w = (make("input", name=n, shape=s, dtype="float32") for n, s in {"x": (2, 4, 5, 6), "w": (4, 4, 1, 1)}.items())
    attributes = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "transposed": False,
                  "output_padding": (0, 0)}
    middle = cast(cast(make("relu", make("convolution", x, w, **attributes)), dtype), "float32")
    graph = graph_of(make("relu", make("convolution", make("mul", middle, constant(2.0)), w, **attributes)))
    values = random_values(graph.outputs)
    found, _ = run_plan(make_plan(graph, graph_of(), channels_last=convolutions(graph)), values)
    expected, _ = run_plan(make_plan(graph, graph_of()), values)
    assert_same(found[0], expected[0], 1e-9)


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    torch.manual_seed(1)
    model = Net(RESULTS[name], nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)).eval()
    for move_bias in (False, True):
        check(model, torch.randn(2, 4, 8, 8), move_bias=move_bias)
    check(model, torch.randn(2, 4, 8, 8), kept=lambda graph: {
        n: "kept" for n in graph.nodes() if n.kind not in ("leaf", "view")})


@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (2, 1, 8, 8), (2, 4, 1, 1), (1, 1, 1, 1), (2, 4, 1, 8), (1, 4, 8, 1)],
                         ids=str)
@pytest.mark.parametrize("channels", [1, 4])
def test_ambiguous_strides(shape: tuple, channels: int) -> None:
    """One channel, one position, one batch entry: strides say little there."""
    model = Net(lambda m, x: (y := F.relu(m[0](x)) * 2) + m[1](y), nn.Conv2d(shape[1], channels, 1),
                nn.Conv2d(channels, channels, 3, padding=1))
    check(model, torch.randn(shape))


def random_network(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Convolutions of all kinds with norms, pools, pointwise operators, branches and several results."""
    draw = random.Random(seed)
    rank = draw.choice([1, 2, 2, 2, 3])
    channels = draw.choice([2, 4, 6])
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    transposed_ = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1]
    pools = ((F.max_pool1d, F.avg_pool1d), (F.max_pool2d, F.avg_pool2d), (F.max_pool3d, F.avg_pool3d))[rank - 1]
    modules: list[nn.Module] = []
    steps: list[Any] = []

    def module(made: nn.Module) -> int:
        modules.append(made)
        return len(modules) - 1

    for _ in range(draw.randint(2, 6)):
        kind = draw.choice(["convolution", "convolution", "transposed", "pointwise", "pool", "norm", "group",
                            "residual", "concatenate", "mean", "softmax"])
        bias, groups = draw.random() < 0.6, draw.choice([1, 1, 2, channels])
        if kind == "convolution":
            d = draw.choice([1, 1, 2])
            n = module(convolution(channels, channels, 3, draw.choice([1, 1, 2]), d, d, groups, bias))
            steps.append(lambda m, x, n=n: m[n](x))
        elif kind == "transposed":
            n = module(transposed_(channels, channels, 3, draw.choice([1, 2]), 1, 0, groups, bias))
            steps.append(lambda m, x, n=n: m[n](x))
        elif kind == "pointwise":
            steps.append(draw.choice([lambda m, x: F.relu(x) + 0.5, lambda m, x: F.gelu(x),
                                      lambda m, x: x * x.sigmoid(), lambda m, x: x.clamp(-1, 1) * 2]))
        elif kind == "pool":
            steps.append(lambda m, x, f=draw.choice(pools): f(x, 2) if min(x.shape[2:]) > 3 else x)
        elif kind == "norm":
            n = module(norm(channels))
            steps.append(lambda m, x, n=n: m[n](x))
        elif kind == "group":
            steps.append(draw.choice([lambda m, x: F.group_norm(x, 2), lambda m, x: F.instance_norm(x)
                                      if x[0, 0].numel() > 1 else x]))
        elif kind == "residual":
            n = module(convolution(channels, channels, 1, bias=bias))
            steps.append(lambda m, x, n=n: x + F.relu(m[n](x)))
        elif kind == "concatenate":
            n = module(convolution(2 * channels, channels, 1, bias=bias))
            steps.append(lambda m, x, n=n: m[n](torch.cat([x, x.abs() * 2], 1)))
        elif kind == "mean":
            steps.append(lambda m, x: x - x.mean(tuple(range(2, x.ndim)), keepdim=True))
        else:
            steps.append(lambda m, x: F.softmax(x, 1) * 2)
    several = draw.random() < 0.3

    def function(m: Any, x: torch.Tensor) -> Any:
        middle = None
        for number, step in enumerate(steps):
            x = step(m, x)
            middle = x if number == len(steps) // 2 else middle
        return (x, middle * 1.5, x.flatten(1)) if several else x

    model = Net(function, *modules)
    return model.train(draw.random() < 0.4), torch.randn(draw.choice([1, 2]), channels, *(draw.choice([6, 7, 8])
                                                                                         for _ in range(rank)))


@pytest.mark.parametrize("seed", range(40 * MORE))
def test_random_networks(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model, x = random_network(seed)
    check(model, x, move_bias=draw.random() < 0.5,
          chosen=lambda graph: frozenset(n for n in sorted(convolutions(graph), key=repr) if draw.random() < 0.8),
          kept=lambda graph: {n: "kept" for n in graph.nodes() if n.kind not in ("leaf", "view")
                              and draw.random() < 0.3})


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_every_plan_has_a_text(target: str) -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        model, x = random_network(seed)
        graph = capture(model, (x,))
        plan = make_plan(graph, graph, move_bias=target == "cuda", channels_last=convolutions(graph))
        _, sources = generate([plan], target)
        assert len(sources) == len(plan.kernels)


# Orders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "before", "after", "expected"), [
    ((0, 2, 3, 1), (2, 6, 4, 5), (2, 3, 2, 4, 5), (0, 3, 4, 1, 2)), ((0, 2, 3, 1), (2, 6, 4, 5), (2, 6, 20), (0, 2, 1)),
    ((0, 2, 3, 1), (2, 6, 4, 5), (2, 120), None), ((0, 2, 3, 1), (2, 6, 4, 5), (12, 4, 5), None),
    ((0, 2, 3, 1), (1, 6, 4, 5), (6, 20), (1, 0)), ((0, 2, 3, 1), (2, 6, 1, 1), (2, 6), (0, 1)),
    ((0, 1, 2, 3), (2, 6, 4, 5), (12, 20), (0, 1)), ((0, 2, 3, 1), (2, 6, 4, 5), (2, 6, 4, 5, 1), (0, 2, 3, 1, 4)),
])
def test_orders_through_reshapes(order: tuple, before: tuple, after: tuple, expected: tuple | None) -> None:
    assert reshaped_order(order, before, after) == expected
    if expected is not None:
        x = torch.arange(torch.Size(before).numel()).reshape(before)
        assert torch.equal(x.permute(order).flatten(), x.reshape(after).permute(expected).flatten())


def test_permutations_merge() -> None:
    x = make("input", name="x", shape=(2, 3, 4, 5), dtype="float32")
    last = transposed(x, channels_last(4))
    assert last.op == "permute" and transposed(last, (0, 3, 1, 2)) is x
    thin = make("input", name="y", shape=(1, 3, 1, 1), dtype="float32")
    assert transposed(thin, channels_last(4)).op == "reshape"


# The choice --------------------------------------------------------------------------------------

# A device whose copies take one second per byte of the tensor (read and written).
SLOW_COPIES = replace(GENERIC_CPU, copy=2.0)


def chain() -> tuple[Graph, list[Node]]:
    """Three convolutions with something in between; tensors of 3136, 6272, 6272 and 6272 bytes."""
    model = Net(lambda m, x: m[2](F.relu(m[1](F.relu(m[0](x)) * 2)) * 2) * 2,
                nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1))
    graph = capture(model, (torch.randn(1, 4, 14, 14),))
    return graph, [n for n in graph.nodes() if n.op == "convolution"]


@pytest.mark.parametrize(("seconds", "chosen"), [
    ([(9e4, 9e4), (9e4, 9e4), (9e4, 9e4)], []),  # nothing gains
    ([(9e4, 5e4), (9e4, 5e4), (9e4, 5e4)], [0, 1, 2]),
    ([(9e4, 9.1e4), (9e4, 5e4), (9e4, 5e4)], [1, 2]),  # the input would be copied for a convolution that loses
    ([(9e4, 5e4), (9e4, 9.5e4), (9e4, 5e4)], [0, 1, 2]),  # it loses less than a change of order costs
    ([(9e4, 5e4), (9e4, 9.9e4), (9e4, 5e4)], [0, 2]),
])
def test_promising_convolutions(seconds: list, chosen: list) -> None:
    _, nodes = chain()
    assert layouts.promising(dict(zip(nodes, seconds, strict=True)), SLOW_COPIES) == {nodes[i] for i in chosen}


def test_a_gain_must_exceed_the_copies() -> None:
    """The input has 3136 bytes, whose copy takes 3136 seconds."""
    graph, nodes = chain()
    plan = make_plan(graph, graph)
    for gain, expected in ((1000.0, False), (1100.0, True)):
        seconds = {n: (1.2e4, 1.2e4 - gain) for n in nodes}
        found = layouts.channels_last_plan(plan, graph, seconds, SLOW_COPIES)
        assert (found is not None) == expected
    assert found is not None and found.channels_last == set(nodes) and sum(s.copies for s in found.kernels) == 1
    assert layouts.channels_last_plan(plan, graph, {}, SLOW_COPIES) is None


def test_what_lost_stays_lost_unless_it_transposes() -> None:
    graph, nodes = chain()
    relus = [n for n in graph.nodes() if n.op == "relu"]
    muls = [n for n in graph.nodes() if n.op == "mul"]
    plan = make_plan(graph, graph, {relus[0]: layouts.SLOWER, muls[0]: layouts.SLOWER, muls[-1]: layouts.SLOWER})
    assert muls[-1] in plan.kept
    found = layouts.channels_last_plan(plan, graph, {n: (9e4, 5e4) for n in nodes}, SLOW_COPIES)
    assert found is not None and relus[0] in found.kept and muls[0] in found.kept
    assert muls[-1] not in found.kept, "it writes the result, in another order than the convolution"
    assert found.kernels[-1].transposes and kinds(found)[-1] == "kernel"


def times(first: float, last: float, host_first: float | None = None, host_last: float | None = None, count: int = 9
          ) -> dict:
    return {layouts.FIRST: SimpleNamespace(median=first, back_to_back_seconds=host_first, repetitions=count,
                                            busy=False),
            layouts.LAST: SimpleNamespace(median=last, back_to_back_seconds=host_last, repetitions=count,
                                           busy=False)}


@pytest.mark.parametrize(("measured", "expected"), [
    ({}, None), (times(1.0, 0.5), 2.0), (times(1.0, 0.98), None), (times(1.0, 2.0), None),
    (times(1.0, 0.5, 1.0, 1.1), None), (times(1.0, 0.5, 1.0, 0.9), 2.0), (times(1.0, 0.94, count=2), None),
    (times(1.0, 0.8, count=2), 1.25), (times(1.0, 0.94), 1.0 / 0.94),
])
def test_the_faster_program(measured: dict, expected: float | None) -> None:
    assert layouts.faster(measured) == expected


def test_convolutions_are_timed_once_per_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(lambda m, x: m[2](m[1](m[0](x))), *(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)))
    graph = capture(model, (torch.randn(1, 4, 8, 8),))
    calls = []

    def measure(callables: dict, **options: Any) -> dict:
        calls.append({name: call().stride() for name, call in callables.items()})
        return times(2.0, 1.0)

    monkeypatch.setattr(layouts, "measure", measure)
    seconds = layouts.convolution_seconds(make_plan(graph, graph), torch.device("cpu"), 600.0)
    assert list(seconds.values()) == [(2.0, 1.0)] * 3
    assert calls == [{layouts.FIRST: (256, 64, 8, 1), layouts.LAST: (256, 1, 32, 4)}]
    # The next run, without any time, knows it.
    assert layouts.convolution_seconds(make_plan(graph, graph), torch.device("cpu"), 0.0) == seconds
    assert len(calls) == 1
    monkeypatch.setattr(layouts, "recall", lambda *_: None)
    assert layouts.convolution_seconds(make_plan(graph, graph), torch.device("cpu"), 0.0) == {}

    def failing(error: Exception) -> None:
        def measure(callables: dict, **options: Any) -> dict:
            raise error

        monkeypatch.setattr(layouts, "measure", measure)

    for error in (torch.OutOfMemoryError(), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")):
        failing(error)
        assert layouts.convolution_seconds(make_plan(graph, graph), torch.device("cpu"), 600.0) == {}
        assert layouts.measured_programs({"a": nn.Identity()}, [1], torch.device("cpu"), 600.0) == {}
    failing(RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        layouts.convolution_seconds(make_plan(graph, graph), torch.device("cpu"), 600.0)
    with pytest.raises(RuntimeError, match="illegal"):
        layouts.measured_programs({"a": nn.Identity()}, [1], torch.device("cpu"), 600.0)


class Kinds(nn.Module):
    """Dense convolutions of three sizes, and two of each channel alone."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 8, 1))
        self.alone = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 5, groups=8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.alone(self.dense(x))


def test_what_was_not_timed_gains_as_its_like_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of each kind comes first; the others are taken to gain as much, but for those refused."""
    graph = capture(Kinds(), (torch.randn(2, 8, 20, 20),))
    plan, order, now = make_plan(graph, graph), [], [0.0]

    def measure(callables: dict, **_: Any) -> dict:
        shape = callables[layouts.FIRST]().shape
        order.append(shape)
        now[0] += 1.0
        return times(2.0, 1.0 if len(order) == 1 else 3.0)

    monkeypatch.setattr(layouts, "clock", lambda: now[0])
    monkeypatch.setattr(layouts, "measure", measure)
    seconds = layouts.convolution_seconds(plan, torch.device("cpu"), 2.0)
    kinds = {n.inputs[1].shape: n for n in convolutions(graph)}
    assert set(seconds) == {kinds[16, 16, 3, 3], kinds[8, 1, 5, 5]}
    others = layouts.like_others(plan, seconds, H200)
    assert {n: last / first for n, (first, last) in others.items()} == pytest.approx(
        {kinds[16, 8, 3, 3]: 0.5, kinds[8, 16, 1, 1]: 0.5, kinds[8, 1, 3, 3]: 1.5})
    refused = {kinds[16, 16, 3, 3]: (2.0, float("inf"))}
    assert layouts.like_others(plan, refused, H200) == {} and layouts.promising(refused, H200) == frozenset()


def test_convolutions_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, nodes = chain()
    seconds = layouts.convolution_seconds(make_plan(graph, graph), torch.device("cpu"), 1000.0)
    assert set(seconds) == set(nodes) and all(first > 0 and last > 0 for first, last in seconds.values())


class Pair(nn.Module):
    """Two convolutions, a norm and a pool, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        y = F.gelu(F.group_norm(self.second(x), 2)) * 2
        return y, y.mean((2, 3)) + 1


@pytest.mark.parametrize("wins", [True, False])
def test_a_whole_program(wins: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Emitted, built, verified and told: with the choice made, and with whole programs measured as slower."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(layouts, "convolution_seconds", lambda plan, device, budget: {
        n: (2.0, 1.0) for n in convolutions(plan.graph)})
    monkeypatch.setattr(layouts, "faster", lambda measured: 1.5 if wins and measured else None)
    monkeypatch.setattr("kernelwright.tuned.region_times", lambda *_: ({}, Untried(0, 0.0)))
    short_budgets(monkeypatch)
    x = torch.randn(3, 3, 17, 16)
    torch.manual_seed(0)
    model = Pair()
    result = kernelwright.optimize(model, (x,), effort="quick", target="cpp", baselines="none")
    report = render_text(result)
    assert ("all 2 convolutions run channels-last: 1.50x" in report) == wins
    assert (".permute((0, 3, 1, 2))" in result.source) == wins
    for training in (False, True):
        model.train(training)
        result.module.train(training)
        with torch.no_grad():
            for ours, theirs in zip(result.module(x), model(x), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
                assert ours.stride() == theirs.stride()
    assert all(mode.certificate.passed for mode in result.modes)


@pytest.mark.parametrize("decides", [True, False])
def test_where_orders_decide_no_program_need_be_measured(decides: bool, monkeypatch: pytest.MonkeyPatch,
                                                         tmp_path: Any) -> None:
    """As on a GPU: the very first file has the convolutions as each was measured alone."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(Tuning, "_orders_decide", lambda tuning: decides)
    asked, first = [], []

    def seconds(plan: Plan, device: torch.device, limit: float) -> dict:
        asked.append(limit)
        return {n: (2.0, 1.0) for n in convolutions(plan.graph)}

    def never(*_: Any) -> dict:
        raise AssertionError("whole programs were measured")

    write = selection.written
    monkeypatch.setattr(layouts, "convolution_seconds", seconds)
    monkeypatch.setattr(layouts, "measured_programs", never)
    monkeypatch.setattr("kernelwright.tuned.region_times", lambda *_: ({}, Untried(0, 0.0)))
    monkeypatch.setattr(selection, "written", lambda problem, modes, *rest: (
        first.append([bool(m.plan.channels_last) for m in modes]), write(problem, modes, *rest))[1])
    monkeypatch.setattr(budget, "SHARES", {**budget.SHARES, "tune": (0.0, 0.0)})
    monkeypatch.setattr(selection, "_LEAST_TUNING", 0.0)
    monkeypatch.setattr(selection, "further_seconds", lambda *_: 0.0)
    torch.manual_seed(0)
    result = kernelwright.optimize(Pair(), (torch.randn(3, 3, 17, 16),), budget=1000.0, effort="quick", target="cpp",
                                   baselines="none")
    report = render_text(result)
    assert ("all 2 convolutions run channels-last" in report) == decides and "as fast as channels-first" not in report
    assert ("of the programs with convolutions channels-last" in report) != decides
    assert (asked[0] > 0.0) == decides and all(all(found) == decides for found in first)
    assert all(mode.certificate.passed for mode in result.modes)


def test_what_another_order_saves_of_the_librarys_calls() -> None:
    """Each convolution less its part of the copies, and nothing where together they promise no gain."""
    graph, nodes = chain()
    plan = make_plan(graph, graph)
    saves = layouts.saved_seconds(plan, graph, dict.fromkeys(nodes, (2.0, 1.0)), H200)
    assert set(saves) == set(nodes) and all(0.9 < seconds <= 1.0 for seconds in saves.values())
    assert layouts.saved_seconds(plan, graph, dict.fromkeys(nodes, (1.0, 2.0)), H200) == {}
    assert layouts.saved_seconds(plan, graph, {}, H200) == {}


def test_what_is_promised_is_a_number() -> None:
    """Of what changes its order alone, and nothing of what channels-last is less accurate."""
    _, nodes = chain()
    one, other, refused = nodes[:3]
    seconds = {one: (2.0, 1.5), other: (2.0, 5.0), refused: (2.0, float("inf"))}
    assert layouts.promised_seconds({one}, set(), seconds) == 0.5
    assert layouts.promised_seconds({one}, {one, other, refused}, seconds) == 3.0
    assert layouts.promised_seconds({one}, {one}, seconds) == 0.0


def test_a_layout_that_the_check_refuses_is_dropped(monkeypatch):
    """The program in the model's own order is judged in its place, and a note says so."""
    plan = Plan(Graph((), (), (), (), False), (), (), ())
    own = ModeProgram("inference", nn.Identity(), plan.graph, Rewriting(plan.graph, (), 0.0, 0.0), plan)
    last = replace(own, plan=replace(plan, channels_last=frozenset({constant(1.0)}),
                                    steps=(KernelStep("k", None, (), (), ()),)))
    judged = []

    passed = SimpleNamespace(passed=True, trials=())
    failed = SimpleNamespace(passed=False, recorded=None, recording=False, is_other_computation=False, trials=(),
                             sentence=lambda: "Failed: digits are lost")

    def certified(problem, mode, *_, **__):
        judged.append(mode.plan)
        return failed if mode.plan.channels_last else passed

    monkeypatch.setattr(Tuning, "modes", lambda *_: [last])
    monkeypatch.setattr(Tuning, "after", lambda tuning, mode, step: mode)
    monkeypatch.setattr(selection, "with_strides_of_eager", lambda problem, mode, *_: [mode])
    monkeypatch.setattr(verified, "written", lambda problem, modes, *_: (modes, "text", ()))
    monkeypatch.setattr(verified, "built", lambda problem, modes, *_: (modes, "text", None))
    monkeypatch.setattr(verified, "certificate_of", certified)
    monkeypatch.setattr(selection, "_timed", lambda *_, **__: ({}, {}))
    for module in (selection, verified):
        monkeypatch.setattr(module, "new_model", lambda *_: nn.Identity())
    monkeypatch.setattr(verified, "misfit", lambda *_: "")
    problem = SimpleNamespace(device=torch.device("cpu"), class_name="Model", source=None)
    _, (found,), text, certificates, _ = selection.select(
        problem, [own], [], "cpp", GENERIC_CPU, Settings(), programs.Stages(Progress()))
    assert [bool(plan.channels_last) for plan in judged] == [True, False] and text == "text"
    assert certificates == {"inference": passed} and "channels-last" in found.notes[0]
    assert "digits are lost" in found.notes[0]


# What is expected before anything is measured ----------------------------------------------------


def separable(groups: int) -> nn.Module:
    """A depthwise separable block where there are as many groups as channels."""
    return Net(lambda m, x: F.relu(m[1](F.relu(m[0](x)) * 2)) * 2, nn.Conv2d(16, 64, 1),
               nn.Conv2d(64, 64, 3, padding=1, groups=groups))


@pytest.mark.parametrize(("groups", "expected"), [(64, 2), (4, 0), (1, 0)])
def test_depthwise_convolutions_are_expected_to_gain_on_a_cpu(groups: int, expected: int) -> None:
    graph = capture(separable(groups), (torch.randn(1, 16, 40, 40),))
    plan = layouts.predicted_plan(make_plan(graph, graph), graph, GENERIC_CPU)
    assert len(plan.channels_last) == expected and bool(plan.layout) == bool(expected)
    assert "x as fast" not in plan.layout  # nothing was measured
    device = replace(GENERIC_CPU, kind="cuda")
    assert not layouts.predicted_plan(make_plan(graph, graph), graph, device).channels_last


@pytest.mark.parametrize(("times", "wins", "last"), [((1.0, 2.0), True, 0), ((1.0, 2.0), False, 2), (None, True, 2)],
                         ids=["measured otherwise", "but not in the program", "nothing measured"])
def test_what_is_measured_overrules_what_was_expected(times, wins, last, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(layouts, "convolution_seconds", lambda plan, device, budget: {} if times is None else {
        n: times for n in convolutions(plan.graph)})
    monkeypatch.setattr(layouts, "faster", lambda measured: 1.5 if wins and measured else None)
    monkeypatch.setattr("kernelwright.tuned.region_times", lambda *_: ({}, Untried(0, 0.0)))
    short_budgets(monkeypatch)
    torch.manual_seed(0)
    result = kernelwright.optimize(separable(64).eval(), (torch.randn(1, 16, 40, 40),), effort="quick", target="cpp",
                                   baselines="none")
    report = render_text(result)
    assert ("all 2 convolutions run channels-last" in report) == (last == 2)
    # A backward has an order of its own.
    calls = [part for part in result.source.split("\ndef _kernelwright_") if "backward" not in part.split("(")[0]]
    assert any(".permute((0, 3, 1, 2))" in part for part in calls) == (last == 2)
    assert all(mode.certificate.passed for mode in result.modes)
