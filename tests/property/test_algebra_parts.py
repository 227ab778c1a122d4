"""A part of tensors side by side is read of the one in which it lies, and writes into parts leave no tensor between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graph_tools import Context, assert_same, evaluate, examples, filled, values_of
from hypothesis import given
from hypothesis import strategies as st
from plan_tools import Of
from torch import Tensor

from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import walk

NAME = "part of one of several"


def parted(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Graph, list[str]]:
    """The rewritten graph of a function of a model and tensors, bit for bit what it gives, and the rules applied."""
    model = Of(function)
    graph = capture(model, inputs)
    result, applied = rewrite_with(graph, Context())
    expected = model(*(i.clone() for i in inputs))
    found = filled(result.structure, evaluate(result.outputs, values_of(model, graph, inputs)))
    assert_same(found, expected, 0.0)
    return result, [a.rule.name for a in applied]


def operators(graph: Graph) -> list[str]:
    return [n.op for n in walk(graph.outputs) if n.kind != "leaf"]


def _border(m: object, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0.0
    y[:, -1] = 0.0
    y[:, 1:-1, 1:-1] *= 0.5
    return y.abs()


def _stripes(m: object, x: Tensor) -> Tensor:
    y = x * 2
    y[:2] = y[:2] + 1
    y[2:] = y[2:].exp()
    return y[2:] - y[:2]


#: Each with how many tensors side by side, or with a border, are left at most.
CASES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "one piece": (lambda m, x: torch.cat([x.exp(), x.cos()], 1)[:, :5] * 2, 0),
    "within a piece": (lambda m, x: torch.cat([x.exp(), x.cos()], 1)[:, 6:9] * 2, 0),
    "border": (lambda m, x: F.pad(x.exp(), (0, 0, 2, 1), value=3.0)[:, 1:2] + x[:, :1], 0),
    "within a border": (lambda m, x: F.pad(x.exp(), (0, 0, 2, 1))[:, 3:6] + x[:, :3], 0),
    "nested": (lambda m, x: torch.cat([torch.cat([x, x.exp()], 1)[:, 3:], x.cos()], 1)[:, 3:6] + 1, 0),
    "written border": (_border, 4),
    "written stripes": (_stripes, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_are_read_where_they_lie(name):
    function, left = CASES[name]
    graph, applied = parted(function, torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)))
    found = operators(graph)
    assert NAME in applied and "opaque" not in found, found
    assert found.count("concatenate") + found.count("pad") <= left, found


STAYS: dict[str, Callable[..., Tensor]] = {
    "of two pieces": lambda m, x: torch.cat([x.exp(), x.cos()], 1)[:, 4:6],
    "read whole": lambda m, x: (torch.cat([x.exp(), x.cos()], 1)[:, :5], torch.cat([x.exp(), x.cos()], 1)),
    "another axis": lambda m, x: torch.cat([x.exp(), x.cos()], 1)[:, :, 2:4],
    "every other": lambda m, x: torch.cat([x.exp(), x.cos()], 1)[:, 0:5:2],
    "two borders": lambda m, x: F.pad(x.exp(), (1, 1, 2, 1))[:, 3:4],
}


@pytest.mark.parametrize("name", STAYS)
def test_other_parts_stay(name):
    _, applied = parted(STAYS[name], torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)))
    assert NAME not in applied


@examples(30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_any_part_of_any_pieces(sizes, data):
    first = data.draw(st.integers(0, sum(sizes) - 1))
    last = data.draw(st.integers(first + 1, sum(sizes)))
    before = data.draw(st.integers(0, 3))

    def function(m: object, *tensors: Tensor) -> Tensor:
        joined = F.pad(torch.cat(tensors, 0), (0, 0, before, 2), value=1.5)
        return joined[first:last] * 2

    tensors = [torch.randn(size, 3, generator=torch.Generator().manual_seed(n)) for n, size in enumerate(sizes)]
    parted(function, *tensors)
