"""The meaning of a graph and of its plan in float64: what every stage before the kernels' text is held against.

Loop kernels run through :mod:`kernelwright.codegen.reference.loops`, everything else through the operators'
references, so a plan can be judged without a compiler. Slow: for tests, fuzzing and small certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kernelwright.capture.forms import flat
from kernelwright.codegen.reference import loops as loops_reference
from kernelwright.codegen.reference import scans as scans_reference
from kernelwright.codegen.reference.attention import evaluate as evaluate_attention
from kernelwright.codegen.reference.batched import evaluate as evaluate_batched
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.codegen.reference.recurrence import evaluate as evaluate_recurrence
from kernelwright.containers import restored
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import OUTSIDE, literal_tensor
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import Attention, BatchedProduct, Extremum, LoopKernel, Recurrence, Scan
from kernelwright.plan.records import KernelStep, Plan, TorchStep
from kernelwright.problem.arguments import received
from kernelwright.problem.outside import read_outside
from kernelwright.problem.state import attribute_of


@contextmanager
def in_float64() -> Iterator[None]:
    """Numbers become float64 tensors, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def values_of(model: torch.nn.Module, graph: Graph, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The values of a graph's leaves by name: the model's tensors (buffers copied) and the inputs."""
    values = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)}
    values |= {n: b.clone() for n, b in model.named_buffers(remove_duplicate=False)}
    given, _ = flat(received(model, inputs))
    values |= {n["name"]: v for n, v in zip(graph.inputs, given, strict=True) if n is not None}
    for node in walk((*graph.outputs, *(e.value for e in graph.effects), *(c.value for c in graph.checks))):
        if node.op == "attribute" and node["name"].startswith(OUTSIDE):
            values[node["name"]] = read_outside(model).tensors[node["name"].removeprefix(OUTSIDE)]
        elif node.op == "attribute":
            owner: Any = model
            for part in node["name"].split("."):
                owner = getattr(owner, part)
            values[node["name"]] = owner
        elif node.op == "buffer" and node["name"] not in values:  # in a plain attribute
            values[node["name"]] = attribute_of(model, node["name"]).detach().clone()
    return values


def filled(structure: Any, outputs: Sequence[Any]) -> Any:
    """The returned value: a graph's structure with indices replaced by outputs."""
    return restored(structure, outputs)


@in_float64()
def exact(roots: Iterable[Node], values: Mapping[str, torch.Tensor],
          disturb: Callable[[Node, Any], Any] | None = None) -> list[Any]:
    """The values of ``roots`` in float64: casts between floating types round nothing.

    disturb: gets every computed node with its value and returns the value to go on with.
    """
    results: dict[Node, Any] = {}
    roots = list(roots)
    for node in walk(roots):
        if node.op == "constant":
            results[node] = node["value"]
        elif node.op == "literal":
            results[node] = literal_tensor(node, widest=True)
        elif node.kind == "leaf":
            results[node] = widest(as_stored(node, values[node["name"]]))
        else:
            result = exact_reference(node, [results[i] for i in node.inputs])
            results[node] = result if disturb is None else disturb(node, result)
    return [results[root] for root in roots]


def widest(value: torch.Tensor) -> torch.Tensor:
    """A tensor in float64 where it is floating."""
    return value.double() if value.is_floating_point() else value


def exact_reference(node: Node, inputs: Sequence[Any]) -> Any:
    """An operator's reference without rounding to its declared floating type."""
    attributes = dict(node.attributes)
    if node.op == "cast" and getattr(torch, node["to"]).is_floating_point:
        return inputs[0].double()
    if node.op == "region_sum":
        attributes["dtype"] = "float64"
    if node.op == "opaque":
        attributes |= {"template": _widened(node["template"]), "keywords": _widened(node["keywords"])}
    return node.operator.reference(*inputs, **attributes)


def _widened(template: Any) -> Any:
    """An opaque call's arguments with float64 in place of every narrower floating type."""
    if not isinstance(template, tuple):
        return template
    if len(template) == 2 and template[0] == "dtype" and isinstance(template[1], str) \
            and getattr(torch, template[1]).is_floating_point:
        return "dtype", "float64"
    return tuple(_widened(part) for part in template)


@in_float64()
def run_plan(plan: Plan, values: Mapping[str, torch.Tensor]) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Execute a plan step by step in float64, as the emitted file does; results and the buffers afterwards.

    Buffers are written in place, where and when the plan says. Raises KeyError where a step reads what no
    earlier step has made, ValueError where a kernel reads tensors of other shapes or types than it was planned for.
    """
    tensors = {n: widest(v) for n, v in values.items()}
    buffers = {n: v.clone() for n, v in tensors.items()}
    results: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        if node.op == "constant":
            return node["value"]
        if node.op == "buffer":
            return buffers[node["name"]]
        if node.kind == "leaf" and node.op != "literal":
            return as_stored(node, tensors[node["name"]])
        return results[node]

    for step in plan.steps:
        if isinstance(step, TorchStep):
            results[step.node] = _torch_call(step.node, [value(i) for i in step.node.inputs], buffers)
            continue
        inputs = [value(i).contiguous() for i in step.inputs]
        for tensor, node in zip(inputs, step.inputs, strict=True):
            if tuple(tensor.shape) != node.shape:
                raise ValueError(f"{step.name} reads {tuple(tensor.shape)} for {node!r}")
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
        return literal_tensor(node, widest=True)
    if node.op == "batch_norm_training" and node["running"]:
        weight, bias = inputs[1:] if len(inputs) > 1 else (None, None)
        mean, variance = (buffers[n] for n in node["running"])
        return torch.nn.functional.batch_norm(inputs[0], mean, variance, weight, bias, True, node["momentum"],
                                              node["eps"])
    return exact_reference(node, inputs)


def _kernel_call(step: KernelStep, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(step.kernel, (Scan, Extremum)):
        return scans_reference.evaluate(step.kernel, inputs, [n.size for n in step.outputs])
    if isinstance(step.kernel, LoopKernel):
        if len(step.kernel.input_dtypes) != len(inputs):
            raise ValueError(f"{step.name} reads {len(inputs)} tensors, planned for {step.kernel.input_dtypes}")
        return loops_reference.evaluate(step.kernel, inputs, [n.size for n in step.outputs], rounding=False)
    if isinstance(step.kernel, Contraction):
        return evaluate_contraction(step.kernel, inputs, rounding=False)
    if isinstance(step.kernel, Attention):
        return evaluate_attention(step.kernel, inputs, [n.size for n in step.outputs], rounding=False)
    if isinstance(step.kernel, BatchedProduct):
        return evaluate_batched(step.kernel, inputs, [n.size for n in step.outputs])
    if isinstance(step.kernel, Recurrence):
        return evaluate_recurrence(step.kernel, inputs, [n.size for n in step.outputs])
    # A special kernel reads the memory below a reshape of its operand.
    operands = [t.reshape(i.shape) for t, i in zip(inputs, step.outputs[0].inputs, strict=True)]
    return [exact_reference(node, operands) for node in step.outputs]
