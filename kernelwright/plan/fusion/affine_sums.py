"""Sums of what is affine in a contraction's results, from sums of these.

A norm's output is affine in what it normalises, once its statistics are known, and those need the sums of the same
values over the same positions::

    mean_p ((y - m) r g + b) = (mean_p y - m) r g + b

So where a contraction's kernel takes reductions over positions of its results, a mean over positions of their norm
needs nothing else of them. In the graph norms are operators, which stay whole where PyTorch computes them
(`algebra/norms.py` opens those below which something collapses); here they are primitives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from kernelwright.algebra.build import NARROW, SUMS, align, reshape
from kernelwright.ir.node import Node, constant, make, rebuild, walk
from kernelwright.plan.bits import union
from kernelwright.plan.contraction.positions import Elements, reduces_positions


@dataclass(frozen=True, slots=True)
class _Step:
    """What was done to a value, in a node whose ``axes`` are summed: a reshape, or an operator with another operand,
    which is the same at all places of these axes. ``first``: whether the value is its first operand."""

    node: Node
    axes: tuple[int, ...]
    other: Node | None = None
    first: bool = True


def affine_sums(roots: Iterable[Node], roles: Mapping[Node, str], anchors: Collection[Node]) -> dict[Node, Node]:
    """For every node below ``roots`` the one of its value in a graph in which sums over the positions of ``anchors``
    stand before what is affine in their results.

    roles: what each node becomes (:func:`kernelwright.plan.roles.roles_of`). Sums of 16-bit values stay.
    """
    order = list(walk(roots))
    elements = Elements(order, roles, anchors)
    moved: dict[Node, Node] = {}
    below: dict[Node, int] = {}  # anchors that a node is made of
    positions: dict[Node, int] = {}  # those that it needs reductions of
    for node in order:
        below[node] = elements.anchors.of.get(node, 0) | union(below, node.inputs)
        positions[node] = (below[node] if roles[node] == "reduction" else 0) | union(positions, node.inputs)
        built = None
        if node.op in SUMS and roles[node] == "reduction" and positions[node.inputs[0]] and node.dtype not in NARROW:
            built = _before(node, roles, elements, positions, moved)
        if built is not None:
            moved[node] = built
        elif node.op == "reshape":
            inputs = (moved[node.inputs[0]],)
            moved[node] = reshape(inputs[0], node.shape) if inputs != node.inputs else node
        else:
            moved[node] = rebuild(node, tuple(moved[i] for i in node.inputs))
    return moved


def _before(node: Node, roles: Mapping[Node, str], elements: Elements, positions: dict[Node, int],
            moved: Mapping[Node, Node]) -> Node | None:
    """A sum of a value to which steps were applied: the steps, applied to a sum. None where that is no total of a
    contraction whose reductions over positions the steps need."""
    value, axes, steps = node.inputs[0], tuple(node["axes"]), []
    while (step := _last_step(value, axes, roles)) is not None:
        steps.append(step)
        value = step.node.inputs[0 if step.first else 1]
        # A reshape leaves the last axes as they are; an operand may lack the first ones.
        axes = tuple(a - step.node.rank + value.rank for a in axes)
    needed = union(positions, (step.other for step in steps if step.other is not None))
    wanted = list(elements.of(value, needed))
    if not wanted or node.dtype != value.dtype:
        return None
    if not any(reduces_positions(make(node.op, value, axes=axes, keepdim=True), anchor, elements) for anchor in wanted):
        return None
    result = make(node.op, moved[value], axes=axes, keepdim=True, origin=node.origin)
    for step in reversed(steps):
        result = _applied(step, result, node, moved)
    return reshape(result, node.shape)


def _last_step(value: Node, axes: tuple[int, ...], roles: Mapping[Node, str]) -> _Step | None:
    """What was done last, if the sum over ``axes`` can be taken before."""
    if roles[value] not in ("pointwise", "view"):
        return None
    least = min(axes)
    if value.op == "reshape":
        kept = value.rank - least
        same = value.inputs[0].rank >= kept and value.shape[least:] == value.inputs[0].shape[-kept:]
        return _Step(value, axes) if same else None
    if value.op == "neg":
        return _Step(value, axes)
    if value.op not in ("add", "sub", "mul", "div"):
        return None
    for first in (True, False) if value.op != "div" else (True,):
        operand, other = value.inputs if first else value.inputs[::-1]
        whole = operand.dtype == value.dtype and operand.rank >= value.rank - least and \
            all(operand.shape[a - value.rank] == value.shape[a] for a in axes)
        if whole and all(_size(other, a - value.rank) == 1 for a in axes):
            return _Step(value, axes, other, first)
    return None


def _size(node: Node, axis: int) -> int:
    """The size of an axis, which is counted from the last one."""
    return node.shape[axis] if -axis <= node.rank else 1


def _applied(step: _Step, result: Node, node: Node, moved: Mapping[Node, Node]) -> Node:
    """A step, applied to the sum of what it was applied to."""
    before = step.node
    if before.op == "reshape":
        return reshape(result, tuple(1 if a in step.axes else size for a, size in enumerate(before.shape)))
    result = align(result, before.rank)
    if step.other is None:
        return make(before.op, result, origin=before.origin)
    other = align(moved[step.other], before.rank)
    if node.op == "sum" and before.op in ("add", "sub"):
        count = float(prod(before.shape[a] for a in step.axes))
        other = constant(other["value"] * count) if other.op == "constant" else make("mul", other, constant(count))
    return make(before.op, *((result, other) if step.first else (other, result)), origin=before.origin)
