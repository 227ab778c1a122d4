"""Copies between PyTorch's own calls: views that it reads show what kernels stored, as they do in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_close, graph_of, leaf, random_values, run_plan
from torch import nn

from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import values_of
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import make
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan, TorchStep
from kernelwright.roofline.devices import H200
from kernelwright.tune.layouts import predicted_plan


def planned(model: nn.Module, *inputs: torch.Tensor) -> tuple[Plan, list[torch.Tensor]]:
    """The plan for a GPU of which nothing was measured, and what its steps compute."""
    graph = capture(model.eval(), list(inputs))
    plan = make_plan(rewrite(graph, H200).graph, graph, move_bias=True)
    plan = predicted_plan(plan, graph, H200)
    return plan, run_plan(plan, values_of(model, graph, inputs))[0]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def copying(plan: Plan) -> tuple[list[str], list[str]]:
    """The steps of a plan that copy, kernels that do nothing else among them, and its products of strided rows."""
    tensors: dict[object, torch.Tensor] = {}
    read = {n for s in plan.kernels for n in s.inputs}
    copies, strided = [f"kernel {s.name}" for s in plan.kernels if s.copies], []

    def tensor(node) -> object:
        if node.op == "constant":
            return node["value"]
        return tensors.setdefault(node, torch.zeros(node.shape, dtype=torch_dtype(node.dtype)))

    for step in plan.steps:
        if isinstance(step, KernelStep):
            for node in step.outputs:
                tensor(node)
            continue
        given = [tensor(i) for i in step.node.inputs]
        made = step.node.operator.reference(*given, **dict(step.node.attributes))
        shown = made.contiguous() if step.node in read else made
        moved = shown is not made and _storage(shown) != _storage(made)
        if moved or (step.node.kind == "view" and _storage(made) != _storage(given[0])):
            copies.append(repr(step.node))
        if step.node.op == "linear" and not given[0].is_contiguous():
            strided.append(repr(step.node))
        tensors[step.node] = shown
    return copies, strided


class Sequence(nn.Module):
    """Positions of a sequence (N, space, C) in a convolution, channel attention, and a residual stream, as in DaViT."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
        self.norm, self.last = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.projection, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def position(self, convolution: nn.Module, x: torch.Tensor) -> torch.Tensor:
        batch, length, channels = x.shape
        image = x.transpose(1, 2).view(batch, channels, int(length**0.5), -1)
        return (image + convolution(image)).flatten(2).transpose(1, 2)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, channels = x.shape
        parts = self.projection(x).reshape(batch, length, 3, 4, channels // 4).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        weights = ((k * 0.5).transpose(-1, -2) @ v).softmax(-1)
        x = (weights @ q.transpose(-1, -2)).transpose(-1, -2)
        return self.out(x.transpose(1, 2).reshape(batch, length, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.position(self.first, F.gelu(x) * 1.5)
        x = x + self.attention(self.norm(x))
        x = self.position(self.second, x)
        return x + self.narrow(F.gelu(self.wide(self.last(x))))


def test_convolutions_of_a_sequence_are_given_it_as_it_lies():
    torch.manual_seed(0)
    model, x = Sequence(), torch.randn(2, 64, 16)
    plan, found = planned(model, x)
    with torch.no_grad():
        assert_close(found[0], model(x), 1e-5)
    assert len(plan.channels_last) == 2
    copies, _ = copying(plan)
    assert copies == []
    convolutions = [s.node for s in plan.steps if isinstance(s, TorchStep) and s.node.op == "convolution"]
    assert [n.inputs[0].op for n in convolutions] == ["reordered"] * 2


def test_a_convolution_of_one_channel_stays():
    """Where either order is the other nothing is gained."""

    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(1, 1, 3, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.convolution(F.gelu(x).transpose(1, 2).reshape(2, 1, 8, 8)))

    plan, _ = planned(Single(), torch.randn(2, 64, 1))
    assert not plan.channels_last


def test_kernels_read_through_a_view_that_a_call_reads():
    """The call gets the strided view, and kernels what it shows."""
    a, b, w = leaf("a", 2, 32, 64), leaf("b", 2, 32, 64), leaf("w", 2, 32, 16, op="parameter")
    stored = make("gelu_erf", make("add", a, b))
    view = make("permute", stored, axes=(0, 2, 1))
    graph = graph_of(make("matmul", view, w), make("mul", make("tanh", view), leaf("c", 2, 64, 32)), stored)
    plan = make_plan(graph, graph)
    kernel_reads = {n for s in plan.kernels for n in s.inputs}
    assert view not in kernel_reads
    copies, _ = copying(plan)
    assert copies == []
    values = {name: v.float() for name, v in random_values(graph.outputs).items()}
    for found, node in zip(run_plan(plan, values)[0], graph.outputs, strict=True):
        assert_close(found, evaluate([node], values)[0], 1e-5)


class Encoder(nn.Module):
    """A block of an encoder whose attention is captured through the slow path of nn.MultiheadAttention."""

    def __init__(self, batch_first: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, bias=bias, batch_first=batch_first)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.narrow(F.gelu(self.wide(self.last(x))))


@pytest.mark.parametrize("bias", [True, False])
def test_attention_of_a_batch_reads_views_of_the_projection(bias):
    """As PyTorch's fast path: nothing is copied but heads into rows, which flash attention's memory does not need."""
    torch.manual_seed(0)
    model, x = Encoder(bias=bias), torch.randn(3, 10, 32)
    plan, found = planned(model, x)
    with torch.no_grad():
        assert_close(found[0], model(x), 1e-5)
    copies, strided = copying(plan)
    assert strided == []
    assert len(copies) <= 1
    assert all(words.startswith("reshape(permute[3, 10, 4, 8]") for words in copies)
    calls = [s.node for s in plan.steps if isinstance(s, TorchStep)]
    attention = next(n for n in calls if n.op == "opaque" and "attention" in n["target"])
    for operand in attention.inputs:
        assert [operand.op, operand.inputs[0].op, operand.inputs[0].inputs[0].op] == ["permute", "reshape", "slice"]
        assert operand.inputs[0].inputs[0].inputs[0].op == "linear"


def test_attention_of_positions_first_stays():
    """What is no batch-first tensor is multiplied as it lies already."""
    torch.manual_seed(0)
    model, x = Encoder(batch_first=False), torch.randn(10, 3, 32)
    plan, found = planned(model, x)
    with torch.no_grad():
        assert_close(found[0], model(x), 1e-5)
    assert copying(plan)[1] == []
