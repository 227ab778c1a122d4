"""Helpers for the tests of stages 2 to 5: small graphs, their values, and an interpreter of plans."""

from __future__ import annotations

import copy
import cProfile
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings

import kernelwright
from kernelwright.algebra.engine import rewrite_with
from kernelwright.algebra.rule import Application, Context
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import exact, filled, values_of
from kernelwright.codegen.reference.plan import run_plan as run_plan  # for the tests that import it from here
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph, memory
from kernelwright.ir.node import Node, Origin, make, walk

torch.set_num_threads(1)

PACKAGE = str(Path(kernelwright.__file__).parent)
# 1 by default (the same examples on every run); a larger number draws more, and new ones each time.
MORE = int(os.environ.get("KERNELWRIGHT_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Hypothesis settings for ``count`` examples."""
    return settings(max_examples=count * MORE, deadline=None, derandomize=MORE == 1, database=None,
                    suppress_health_check=list(HealthCheck))


# Graphs by hand ----------------------------------------------------------------------------------


def leaf(name: str, *shape: int, op: str = "input", dtype: str = "float32") -> Node:
    """An input (or parameter, buffer) of a hand-made graph. A name that starts with "positive" holds
    values away from zero."""
    return make(op, name=name, shape=shape, dtype=dtype)


def anchor(op: str, *inputs: Node, **attributes: Any) -> Node:
    """A linear operator with an origin of its own, so that it can be told from others."""
    return make(op, *inputs, origin=Origin(module=op), **attributes)


def graph_of(*outputs: Node) -> Graph:
    """A graph of these outputs."""
    inputs = tuple(n for n in walk(outputs) if n.op == "input")
    return Graph(inputs, tuple(outputs), tuple(range(len(outputs))), (), False)


def random_values(roots: Iterable[Node], seed: int = 0) -> dict[str, torch.Tensor]:
    """A value for every leaf below the roots: float64 normal, or random truth values and small integers."""
    values: dict[str, torch.Tensor] = {}
    for node in walk(roots):
        if node.kind != "leaf" or node.op in ("constant", "literal"):
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(node["name"].encode()) + seed)
        if node.dtype == "bool":
            value = torch.rand(node.shape, generator=generator) < 0.5
        elif node.dtype.startswith("int"):
            value = torch.randint(0, 5, node.shape, generator=generator)
        else:
            value = torch.randn(node.shape, generator=generator, dtype=torch.float64)
            if node["name"].startswith("positive"):
                value = value.abs() + 0.5
        values[node["name"]] = value
    return values


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9, what: str = "") -> None:
    """Equal shapes, equal places of NaN and infinities, and differences below ``tolerance`` of the largest value."""
    assert tuple(actual.shape) == tuple(expected.shape), f"{what}: shape {actual.shape}, expected {expected.shape}"
    if not expected.is_floating_point():
        assert torch.equal(actual.to(expected.dtype), expected), what
        return
    actual, expected = actual.double(), expected.double()
    finite = expected.isfinite()
    assert torch.equal(actual.isnan(), expected.isnan()), f"{what}: NaN at other places"
    special = ~finite & ~expected.isnan()
    assert torch.equal(actual[special], expected[special]), f"{what}: infinities differ"
    scale = max(1.0, float(expected[finite].abs().max())) if finite.any() else 1.0
    difference = (actual - expected)[finite].abs()
    assert not finite.any() or float(difference.max()) <= tolerance * scale, \
        f"{what}: off by {float(difference.max())} at scale {scale}"


# Rewriting ---------------------------------------------------------------------------------------


def all_anchors(graph: Graph) -> Context:
    """Permission to collapse every linear operator."""
    nodes = walk((*graph.outputs, *(e.value for e in graph.effects)))
    return Context(frozenset(id(n.origin) for n in nodes))


def rewritten(graph: Graph) -> tuple[Graph, tuple[Application, ...]]:
    """The fixpoint with every anchor allowed; asserts that a second rewriting changes nothing."""
    result, applications = rewrite_with(graph, all_anchors(graph))
    again, more = rewrite_with(result, all_anchors(graph))
    assert all(a is b for a, b in zip(again.outputs, result.outputs, strict=True)), [a.rule.name for a in more]
    assert all(a.value is b.value for a, b in zip(again.effects, result.effects, strict=True))
    if not applications:
        assert all(a is b for a, b in zip(result.outputs, graph.outputs, strict=True))
    check_replaced(graph, result)
    return result, applications


def check_replaced(graph: Graph, result: Graph) -> None:
    """Nodes of a rewritten graph stand for all that was replaced, but for results of which nothing is computed."""
    standing = {node for nodes in result.replaces.values() for node in nodes}
    computed = [before for before, after in zip(graph.outputs, result.outputs, strict=True)
                if memory(after).kind != "leaf" and after.op != "opaque"]
    assert {n for n in walk(computed) if n.kind != "leaf"} <= standing
    assert standing <= set(walk((*graph.outputs, *(e.value for e in graph.effects))))
    kept = set(walk(graph.outputs)) & result.replaces.keys()
    assert all(node in result.replaces[node] for node in kept if node.kind != "view")


def check_rewrite(graph: Graph, *, tolerance: float = 1e-9,
                  values: Mapping[str, torch.Tensor] | None = None) -> list[str]:
    """Rewrite, compare values and types; the names of the rules that were applied."""
    values = values or random_values(graph.outputs)
    result, applications = rewritten(graph)
    for before, after in zip(graph.outputs, result.outputs, strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype), f"{before!r} became {after!r}"
    for expected, actual in zip(exact(graph.outputs, values), exact(result.outputs, values), strict=True):
        assert_close(actual, expected, tolerance, "; ".join(f"{a.rule.name}: {a.before}" for a in applications))
    return [a.rule.name for a in applications]


# Work ------------------------------------------------------------------------------------------


def calls(function: Callable[[], object], *also: str) -> int:
    """How many calls of the package's functions it takes, and calls in these of functions in C. also: other packages'
    folders."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        function()
    finally:
        profile.disable()
    own = [e for e in profile.getstats() if not isinstance(e.code, str)
           and e.code.co_filename.startswith((PACKAGE, *also))]
    return sum(e.callcount + sum(c.callcount for c in e.calls or () if isinstance(c.code, str)) for e in own)


# Captured models ---------------------------------------------------------------------------------


def assert_same(actual: Any, expected: Any, tolerance: float, what: str = "result") -> None:
    """Nested results agree in structure, types and values."""
    if isinstance(expected, torch.Tensor):
        assert_close(actual, expected, tolerance, what)
        return
    assert type(actual) is type(expected), f"{what}: {type(actual)}, expected {type(expected)}"
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key], tolerance, f"{what}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, tolerance, f"{what}[{number}]")
    else:
        assert actual == expected, what


def eager(model: torch.nn.Module, inputs: Sequence[Any], seed: int = 0) -> tuple[Any, dict[str, torch.Tensor]]:
    """What the model returns, and its buffers afterwards; the model and the inputs stay as they are."""
    work, arguments = copy.deepcopy(model), copy.deepcopy(tuple(inputs))
    torch.manual_seed(seed)
    with torch.no_grad():
        result = work(*arguments)
    return result, dict(work.named_buffers(remove_duplicate=False))


def check_capture(model: torch.nn.Module, inputs: Sequence[Any], tolerance: float = 1e-9, file: str | None = None
                  ) -> Graph:
    """Capture and compare results and buffers with the module's own forward; the graph."""
    state = copy.deepcopy(model.state_dict())
    graph = capture(model, inputs, file=file)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), f"capture changed {name}"
    expected, buffers = eager(model, inputs)
    values = values_of(model, graph, inputs)
    torch.manual_seed(0)
    with torch.no_grad():
        roots = [*graph.outputs, *(e.value for e in graph.effects)]
        drawing = sorted((n for n in walk(roots) if n.get("serial", -1) >= 0), key=lambda n: n["serial"])
        found = evaluate((*drawing, *roots), values)[len(drawing):]
    assert_same(filled(graph.structure, found[:len(graph.outputs)]), expected, tolerance)
    after = {n: b for n, b in values.items() if n in buffers}
    after |= {e.name: v for e, v in zip(graph.effects, found[len(graph.outputs):], strict=True)}
    for name, tensor in buffers.items():
        assert_same(after[name], tensor, tolerance, f"buffer {name}")
    return graph


def has_positions(node: Node) -> bool:
    """Whether a convolution stays one; of one position it becomes a linear layer."""
    x, weight = node.inputs[:2]
    return node["transposed"] or node["groups"] > 1 or any(node["padding"]) or \
        prod((*x.shape[2:], *weight.shape[2:])) > 1
