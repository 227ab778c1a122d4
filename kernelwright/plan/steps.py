"""The steps of a program before and after, with what each costs by the roofline's cost model: for reports alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.describe import place, title
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.records import Step
from kernelwright.roofline.cost import arithmetic_seconds, node_work
from kernelwright.roofline.devices import Device


def replaced_nodes(graph: Graph, covers: Iterable[Node]) -> list[Node]:
    """The nodes of the captured graph that a kernel replaces. covers: nodes of the rewritten ``graph`` whose work it
    does; through views between these it reads, so it does their work, too."""
    found: dict[Node, None] = {}
    for node in covers:
        found[node] = None
        for below in node.inputs:
            while below.kind == "view":
                found[below] = None
                below = below.inputs[0]
    return list(dict.fromkeys(source for node in found for source in graph.replaces.get(node, (node,))))


def computes(node: Node) -> bool:
    """Whether a node is an operator that does something: no leaf, no view, no choice of one of several results."""
    return node.kind not in ("leaf", "view") and node.op != "item"


def captured_steps(graph: Graph, device: Device) -> tuple[Step, ...]:
    """The operators of a captured graph in order, each as PyTorch runs it, by itself."""
    nodes = [n for n in graph.operators() if computes(n)]
    numbers = {n: number for number, n in enumerate(nodes)}
    return tuple(_call(n, device, _read(n.inputs, numbers)) for n in nodes)


def rewritten_alone(graph: Graph, captured: Graph, device: Device) -> tuple[int, float]:
    """How many operators a rewritten graph has, and the seconds that they would take, each by itself and without its
    launch. Casts that rules made are none: kernels do them on the way."""
    before = set(captured.operators())
    nodes = [n for n in graph.operators() if computes(n) and (n.op != "cast" or n in before)]
    return len(nodes), sum(_alone(n, device) for n in nodes)


def planned_steps(plan: Plan, captured: Graph, device: Device) -> tuple[Step, ...]:
    """The steps of a plan in order: its kernels, and what stays a torch call."""
    before = {n: number for number, n in enumerate(n for n in captured.operators() if computes(n))}
    updated = {update.value for update in plan.effects}  # a batch counter
    numbers: dict[Node, int] = {}
    found: list[Step] = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            made, stands_for = step.outputs, replaced_nodes(plan.graph, step.covers)
            described = _kernel(step, device, _read(step.inputs, numbers))
        elif computes(step.node) and step.node not in updated:
            made, stands_for = (step.node,), plan.graph.replaces.get(step.node, (step.node,))
            described = _call(step.node, device, _read(step.node.inputs, numbers))
        else:
            continue
        found.append(replace(described, replaces=tuple(sorted({before[n] for n in stands_for if n in before}))))
        numbers |= dict.fromkeys(made, len(found) - 1)
    return tuple(found)


def _alone(node: Node, device: Device) -> float:
    return max(arithmetic_seconds(node, device), node_work(node).bytes / device.read)


def _call(node: Node, device: Device, reads: tuple[int, ...]) -> Step:
    work = node_work(node)
    return Step(title(node), place(node.origin), work.operations, work.bytes, _alone(node, device),
                _least((node,), work.bytes, device), reads)


def _kernel(step: KernelStep, device: Device, reads: tuple[int, ...]) -> Step:
    """A kernel, which does the work of all that it covers and moves its own inputs and outputs alone."""
    nodes = list(dict.fromkeys(step.covers))
    moved = sum(n.bytes for n in dict.fromkeys((*step.inputs, *step.outputs)))
    arithmetic = sum(arithmetic_seconds(n, device) for n in nodes)
    where = next((found for n in nodes if (found := place(n.origin))), "")
    return Step(step.name, where, sum(node_work(n).operations for n in nodes), moved,
                max(arithmetic, moved / device.read), _least(nodes, moved, device), reads, is_kernel=True)


def _least(nodes: Iterable[Node], moved: int, device: Device) -> float:
    """Seconds below which no version of a step comes: its bytes, and the products that it forms, at the peaks."""
    computed = sum(node_work(n).operations / device.best_arithmetic(
        torch_dtype(n.dtype), tf32=n.op == "convolution" and not n.get("exact")) for n in nodes if n.kind == "linear")
    return max(moved / device.memory_peak, computed)


def _read(inputs: Iterable[Node], numbers: Mapping[Node, int]) -> tuple[int, ...]:
    """The numbers of the steps whose results these are, or show: through views, and choices of one of several."""
    found: set[int] = set()
    for node in inputs:
        while node not in numbers and (node.kind == "view" or node.op == "item") and node.inputs:
            node = node.inputs[0]
        if node in numbers:
            found.add(numbers[node])
    return tuple(sorted(found))
