"""Deep networks: every stage is near linear in the number of blocks, of those kinds whose blocks reach far back.

A residual stream is made of all blocks before, a U-Net joins its last blocks with its first ones. Work is counted in
calls of functions, not in seconds, so that no other program on the machine matters.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from graph_tools import calls
from torch import nn
from torch.nn import functional as F

from kernelwright.adjoint import saved
from kernelwright.adjoint.backward import make_backward
from kernelwright.algebra.engine import rewrite
from kernelwright.capture.converter import Converter
from kernelwright.capture.export import capture
from kernelwright.codegen.cuda.target import CUDA
from kernelwright.codegen.generate import TARGETS, generate
from kernelwright.emit.facts import plan_facts
from kernelwright.emit.program import make_program
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.kernels import Attention as AttentionKernel
from kernelwright.plan.lowering.fused import FUSED
from kernelwright.plan.lowering.fused import fused as taken_whole
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig
from kernelwright.roofline.devices import GENERIC_CPU, H200

#: Four times as many: a part that grows with the square shows as it would between twice as many of the same number.
SIZES = (24, 96)


class Attention(nn.Module):
    """A block of a transformer, on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.key = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + torch.softmax(self.key(y) @ y.transpose(1, 2), -1) @ y


class Bottleneck(nn.Module):
    """Two convolutions with a batch norm between, beside an identity."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm, self.up = nn.Conv2d(4, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(torch.relu(self.norm(self.down(x)))) + x)


class Dense(nn.Module):
    """A dense block, of which every layer reads the results of all before it, and a transition."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(2 + n, 1, 3, padding=1) for n in range(2))
        self.transition = nn.Conv1d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.relu(torch.cat(found, 1))))
        return self.transition(torch.cat(found, 1))


class UNet(nn.Module):
    """Half of the blocks on the way down, half on the way up, where each reads its counterpart as well."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv1d(2, 2, 3, padding=1) for _ in range(blocks // 2))
        self.up = nn.ModuleList(nn.Conv1d(4, 2, 3, padding=1) for _ in range(blocks // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for layer in self.down:
            x = F.silu(layer(x))
            skips.append(x)
        for layer in self.up:
            x = F.silu(layer(torch.cat([x, skips.pop()], 1)))
        return x


class Squeezed(nn.Module):
    """A block whose gate is the mean of a convolution, which may be that of sums, on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.gate = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y * torch.sigmoid(self.gate(self.side(y).mean((2, 3))))[:, :, None, None]


class Scaled(nn.Module):
    """The mean of a scaled and normed convolution beside the block, without a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x)) + self.norm(self.side(x) * 2).mean((2, 3), keepdim=True)


class Linears(nn.Module):
    """Two linear layers without an activation between, of which a sum is left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.second(self.first(x)).sum(1, keepdim=True))


class Products(nn.Module):
    """The mean of a product of matrices on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (torch.relu(x) @ self.weight).mean(1, keepdim=True)


class Stream(Products):
    """The same with the mean of the stream, which is that of the products of all blocks before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x.mean(1, keepdim=True)


def chain(kind: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    return lambda blocks: nn.Sequential(*(kind() for _ in range(blocks)))


NETWORKS = {"transformer": (chain(Attention), (2, 130, 4)), "bottleneck": (chain(Bottleneck), (2, 4, 16, 16)),
            "dense": (chain(Dense), (2, 2, 64)), "u-net": (UNet, (2, 2, 64))}


def work(model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, int]]:
    """The nodes and edges of a model's graph, and the calls of each stage from there to a program's text."""
    found: dict[str, int] = {}

    def counted(stage: str, function: Callable[[], object]) -> object:
        results: list[object] = []
        found[stage] = calls(lambda: results.append(function()))
        return results[0]

    convert = Converter.graph
    with monkeypatch.context() as patch:
        patch.setattr(Converter, "graph", lambda self, *a, **k: counted("convert", lambda: convert(self, *a, **k)))
        graph = capture(model, (x,))
    rewritten = counted("rewrite", lambda: rewrite(graph, H200)).graph
    chosen = {n: KernelConfig("fp16x3", lines=True) for n in rewritten.nodes() if can_contract(n)}
    plan = counted("plan", lambda: make_plan(rewritten, graph, move_bias=True, contractions=chosen))
    assert len(plan.kernels) >= len(chosen)
    taken = counted("what attention takes", lambda: taken_whole(rewritten, {}, FUSED))
    others = {n: config for n, config in chosen.items() if n not in taken}
    fused = counted("plan with attention", lambda: make_plan(rewritten, graph, move_bias=True, contractions=others,
                                                             fused_products=FUSED))
    attentions = [s for s in fused.kernels if isinstance(s.kernel, AttentionKernel)]
    assert len(attentions) == sum(isinstance(m, Attention) for m in model.modules())
    (plan,), sources = counted("generate", lambda: generate([plan], "cuda"))
    counted("emit", lambda: (make_program("inference", plan, sources, target=CUDA),
                             plan_facts(plan, model, [x], "any")))
    return sum(1 + len(n.inputs) for n in graph.nodes()), found


@pytest.mark.parametrize("kind", NETWORKS)
def test_work_is_near_linear(kind, monkeypatch):
    make, shape = NETWORKS[kind]
    x = torch.randn(shape)
    some = [work(make(blocks), x, monkeypatch) for blocks in SIZES]
    for (size, before), (twice, after) in pairwise(some):
        most = twice * log2(twice) / (size * log2(size))
        grown = {stage: after[stage] / before[stage] for stage in after}
        assert max(grown.values()) < most, f"{size} to {twice} nodes and edges: {grown}, {some}"


def work_of_backward(model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, int]]:
    """The nodes and edges of a model's graph, and the calls that its backward takes: all of it, the minimum cut in it,
    and its text."""
    graph = capture(model, (x,), recording=True)
    forward = rewrite(graph, GENERIC_CPU).graph
    found: dict[str, int] = {}
    results: list[tuple[Node, ...]] = []
    cut, libraries = saved._cut, Path(networkx.__file__).parent.as_posix()

    def counted(*given: Any) -> tuple[Node, ...]:
        found["cut"] = calls(lambda: results.append(cut(*given)), libraries)
        return results[-1]

    with monkeypatch.context() as patch:
        patch.setattr(saved, "_cut", counted)
        made = make_backward(graph, GENERIC_CPU, forward=forward)
    assert results[-1] and made[-1].gradients.saved
    found["all"] = calls(lambda: make_backward(graph, GENERIC_CPU, forward=forward))
    plans, sources = generate([part.plan for part in made], "cpp")
    found["emit"] = calls(lambda: [make_program("training", plan, sources, target=TARGETS["cpp"]) for plan in plans])
    return sum(1 + len(n.inputs) for n in graph.nodes()), found


@pytest.mark.parametrize("kind", ["transformer", "dense", "u-net"])
def test_work_of_a_backward_is_near_linear(kind, monkeypatch):
    make, shape = NETWORKS[kind]
    (size, before), (more, after) = (
        work_of_backward(make(blocks).train(), torch.randn(shape), monkeypatch) for blocks in (6, 24))
    grown = {stage: after[stage] / before[stage] for stage in after}
    assert max(grown.values()) < more * log2(more) / (size * log2(size)), (grown, before, after)


COLLAPSING = {"squeeze and excitation": (Squeezed, (2, 4, 160, 160), "sum of a convolution"),
              "scaled norm": (Scaled, (2, 4, 160, 160), "sum of a convolution"),
              "two linear layers": (Linears, (4, 8192, 16), "sum of a linear layer"),
              "products": (Products, (4, 8192, 16), "sum of a matrix product"),
              "means of a stream": (Stream, (4, 8192, 16), "sum of a matrix product")}


@pytest.mark.parametrize("kind", COLLAPSING)
def test_deciding_what_to_collapse_is_near_linear(kind):
    """Each block has an operator that pays to collapse, however small a part of the whole that is: it does in each."""
    block, shape, rule = COLLAPSING[kind]
    counted = []
    for blocks in SIZES:
        graph = capture(chain(block)(blocks).eval(), (torch.randn(shape),))
        found = []
        counted.append(calls(lambda graph=graph, found=found: found.append(rewrite(graph, GENERIC_CPU))))
        assert sum(a.rule.name == rule for a in found[0].applications) >= blocks
        assert found[0].seconds_after < 0.97 * found[0].seconds_before
    for (size, before), (twice, after) in pairwise(zip(SIZES, counted, strict=True)):
        assert after / before < twice * log2(twice) / (size * log2(size)), counted


class Cropped(nn.Module):
    """Blocks along tokens of which the first is read, by two heads; each leaves out another token before the next."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.sides = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(2)) for _ in range(blocks))
        self.heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one, other in self.sides:
            x = torch.tanh(one(x)[:, :-1]) + torch.relu(other(x)[:, :-1])
        return sum(head(x)[:, 0].sin() for head in self.heads)


def test_slices_go_up_in_near_linear_work():
    """Two heads read one token, so that walk after walk takes the slice further, through slices of each block."""
    counted = []
    for blocks in SIZES:
        graph, found = capture(Cropped(blocks), (torch.randn(2, 200, 16),)), []
        counted.append(calls(lambda graph=graph, found=found: found.append(rewrite(graph, GENERIC_CPU))))
        assert all(n.shape[1:-1] in ((), (1,)) for n in found[0].graph.nodes() if n.op == "linear")
    for (size, before), (twice, after) in pairwise(zip(SIZES, counted, strict=True)):
        assert after / before < twice * log2(twice) / (size * log2(size)), counted


class Scaled(nn.Module):
    """A block of a transformer whose result is scaled on its way to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line, self.scale = nn.LayerNorm(64), nn.Linear(64, 64), nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.line(self.norm(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_blocks_of_a_residual_stream_are_planned_alike(dtype: torch.dtype) -> None:
    """However many stand before one: a sum and its norm are one kernel, and nothing is stored wider than it is."""
    model = nn.Sequential(*(Scaled() for _ in range(40))).to(dtype).eval()
    graph = capture(model, (torch.randn(8, 32, 64, dtype=dtype),))
    plan = make_plan(graph, graph)
    assert len(plan.kernels) == 41
    between = plan.kernels[1:-1]
    assert all(len(step.outputs) == 2 and any(n.op == "layer_norm" for n in step.covers) for step in between)
    name = str(dtype).removeprefix("torch.")
    assert {node.dtype for step in plan.kernels for node in step.outputs} == {name}
