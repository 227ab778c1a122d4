"""Helpers for the tests of stages 2 to 5: small graphs, their values, and an interpreter of plans."""

from __future__ import annotations

import copy
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, settings

from kernelwright.algebra.engine import rewrite_with
from kernelwright.algebra.rule import Application, Context
from kernelwright.capture.export import capture
from kernelwright.codegen import loop_evaluator
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, Origin, make, walk
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.records import KernelStep, Plan, TorchStep

torch.set_num_threads(1)

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


def exact(roots: Iterable[Node], values: Mapping[str, torch.Tensor]) -> list[Any]:
    """The values of ``roots`` in float64: casts between floating types round nothing."""
    results: dict[Node, Any] = {}
    roots = list(roots)
    for node in walk(roots):
        if node.op == "constant":
            results[node] = node["value"]
        elif node.op == "literal":
            results[node] = torch.tensor(node["value"], dtype=getattr(torch, node["dtype"]))
        elif node.kind == "leaf":
            value = values[node["name"]]
            results[node] = value.double() if value.is_floating_point() else value
        else:
            results[node] = exact_reference(node, [results[i] for i in node.inputs])
    return [results[root] for root in roots]


def exact_reference(node: Node, inputs: Sequence[Any]) -> Any:
    """An operator's reference without rounding to its declared floating type."""
    attributes = dict(node.attributes)
    if node.op == "cast" and getattr(torch, node["to"]).is_floating_point:
        return inputs[0].double()
    if node.op == "region_sum":
        attributes["dtype"] = "float64"
    return node.operator.reference(*inputs, **attributes)


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
    return result, applications


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


# Captured models ---------------------------------------------------------------------------------


def values_of(model: torch.nn.Module, graph: Graph, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The values of a graph's leaves: the model's tensors (copied) and the inputs."""
    values = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)}
    values |= {n: b.clone() for n, b in model.named_buffers(remove_duplicate=False)}
    flat = torch.utils._pytree.tree_leaves(tuple(inputs))
    values |= {n["name"]: v for n, v in zip(graph.inputs, flat, strict=True) if n is not None}
    for node in walk((*graph.outputs, *(e.value for e in graph.effects))):
        if node.op == "attribute":
            owner: Any = model
            for part in node["name"].split("."):
                owner = getattr(owner, part)
            values[node["name"]] = owner
    return values


def filled(structure: Any, outputs: Sequence[Any]) -> Any:
    """The returned value: a graph's structure with indices replaced by outputs."""
    if isinstance(structure, dict):
        return {k: filled(v, outputs) for k, v in structure.items()}
    if isinstance(structure, (tuple, list)):
        return type(structure)(filled(v, outputs) for v in structure)
    return None if structure is None else outputs[structure]


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


# Plans -------------------------------------------------------------------------------------------


def run_plan(plan: Plan, values: Mapping[str, torch.Tensor]) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Execute a plan step by step, as the emitted file does; results and the buffers afterwards.

    Loop kernels run through the loop evaluator in float64, special ones and torch calls through their
    references. Buffers are written in place, where and when the plan says. Raises KeyError where a
    step reads what no earlier step has made.
    """
    tensors = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
    buffers = {n: v.clone() for n, v in tensors.items()}
    results: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        if node.op == "constant":
            return node["value"]
        if node.op == "buffer":
            return buffers[node["name"]]
        return tensors[node["name"]] if node.kind == "leaf" and node.op != "literal" else results[node]

    for step in plan.steps:
        if isinstance(step, TorchStep):
            results[step.node] = _torch_call(step.node, [value(i) for i in step.node.inputs], buffers)
            continue
        inputs = [value(i).contiguous() for i in step.inputs]
        for tensor, node in zip(inputs, step.inputs, strict=True):
            assert tuple(tensor.shape) == node.shape, f"{step.name} reads {node!r}"
        for node, tensor in zip(step.outputs, _kernel_call(step, inputs), strict=True):
            results[node] = tensor.reshape(node.shape)
        for number, name in step.buffers:
            buffers[name].copy_(results.pop(step.outputs[number]))
    found = [value(n) for n in plan.results]
    for update in plan.effects:
        buffers[update.name].copy_(value(update.value))
    return found, buffers


def _torch_call(node: Node, inputs: list[Any], buffers: dict[str, torch.Tensor]) -> Any:
    if node.op == "literal":
        return torch.tensor(node["value"], dtype=getattr(torch, node["dtype"]))
    if node.op == "batch_norm_training" and node["running"]:
        weight, bias = inputs[1:] if len(inputs) > 1 else (None, None)
        mean, variance = (buffers[n] for n in node["running"])
        return torch.nn.functional.batch_norm(inputs[0], mean, variance, weight, bias, True, node["momentum"],
                                              node["eps"])
    return exact_reference(node, inputs)


def _kernel_call(step: KernelStep, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(step.kernel, LoopKernel):
        assert len(step.kernel.input_dtypes) == len(inputs)
        return loop_evaluator.evaluate(step.kernel, inputs, [n.size for n in step.outputs])
    # A special kernel reads the memory below a reshape of its operand.
    node = step.outputs[0]
    operands = [t.reshape(i.shape) for t, i in zip(inputs, node.inputs, strict=True)]
    return [exact_reference(node, operands)]
