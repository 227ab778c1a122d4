"""Reductions in two stages, of which a convolution's kernel takes the first.

A norm's statistics are over channels and positions, a batch norm's over the batch and positions: over more than a
kernel has at hand. Over all positions of each entry and channel they may join it (`contraction.positions`), and what is
left is tiny::

    sum = sum of sums      mean = mean of means      extremum = extremum of extrema
    var = mean of variances + variance of means      (all have equally many elements)

In the same way a pool is one over windows of the last axis, or of two lines of it, and then one over the windows of the
other axes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from kernelwright.algebra.build import NARROW, reduce, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make, rebuild, walk
from kernelwright.ir.ops.windows import are_inside, reaches_beyond
from kernelwright.plan.contraction.positions import (
    POOL_LINES,
    POOL_SIZES,
    POOLS,
    POSITION_REDUCTIONS,
    Elements,
    can_pool,
    can_pool_lines,
    can_pool_planes,
    first_position,
    has_elements,
    positions_of,
    windows_below,
)
from kernelwright.plan.contraction.products import TYPES
from kernelwright.plan.lowering.traced import traced


@dataclass(frozen=True, slots=True)
class TwoStage:
    """A graph in which reductions are in two stages.

    moved: for every node of the given graph, the one of its value. firsts: the first stages, each with what it is one
    of, which may be several. combined: results of two second stages.
    """

    moved: dict[Node, Node]
    firsts: list[tuple[Node, Node]]
    combined: set[Node]

    def sources(self, source: Mapping[Node, Node]) -> dict[Node, Node]:
        """Where each node of the new graph came from. source: the same of the given graph."""
        return traced(((old, (new,)) for old, new in self.moved.items()), source)


def in_two_stages(roots: Iterable[Node], roles: Mapping[Node, str], anchors: Collection[Node], whole: Collection[Node],
                  of_lines: Collection[Node] = ()) -> TwoStage:
    """The graph below ``roots`` with those reductions in two stages whose first stage may join a contraction.

    roles: what each node becomes (:func:`kernelwright.plan.roles.roles_of`). anchors: contractions that reductions may
    join. whole: reductions to leave as they are. of_lines: those of the anchors that pool two lines at a time.
    """
    result = TwoStage({}, [], set())
    order = list(walk(roots))
    elements = Elements(order, roles, anchors)
    lines = elements.anchors.some(of_lines)
    for node in order:
        inputs = tuple(result.moved[i] for i in node.inputs)
        built = None
        if roles[node] == "reduction" and node not in whole and node.dtype in TYPES:
            built = _two_stage(node, inputs[0], elements, lines)
        if built is not None:
            result.moved[node], firsts = built
            result.firsts.extend((first, node) for first in firsts)
            result.combined.update([result.moved[node]] if len(firsts) > 1 else [])
        elif node.op == "reshape":
            result.moved[node] = reshape(inputs[0], node.shape) if inputs != node.inputs else node
        else:
            result.moved[node] = rebuild(node, inputs)
    return result


def _two_stage(node: Node, x: Node, elements: Elements, of_lines: int) -> tuple[Node, list[Node]] | None:
    """A reduction of ``x`` in two stages, and the first ones; None where it is not one that can be."""
    windows = windows_below(node)
    if windows is not None:
        return _of_windows(node, windows, x, elements, of_lines)
    operand = node.inputs[0]
    if node.op not in POSITION_REDUCTIONS:
        return None
    for anchor in elements.of(operand):
        count = positions_of(anchor)
        shape = _apart(operand.shape, count) if count > 1 else None
        if shape is not None:
            first = first_position(shape, count)
            assert first is not None  # which taking an axis apart has made
            return _total(node, x, shape, first)
    return None


def _apart(shape: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    """The shape with the axis taken apart within which the last ``count`` elements begin; None if that cannot be."""
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        if inner == count:
            break
        if count % (inner * shape[axis]):
            left = count // inner
            return None if shape[axis] % left else (*shape[:axis], shape[axis] // left, left, *shape[axis + 1:])
        inner *= shape[axis]
    return shape


def _total(node: Node, x: Node, shape: tuple[int, ...], first: int) -> tuple[Node, list[Node]] | None:
    """A reduction of ``x`` over the axes of ``shape`` from ``first`` on, which are the positions, and over others."""
    split = next((a for a in range(x.rank) if shape[a] != x.shape[a]), None)
    reduced = list(node["axes"])
    if split is not None:
        reduced = [a + (a > split) for a in reduced] + ([split + 1] if split in reduced else [])
    positions = tuple(range(first, len(shape)))
    if any(a not in reduced and shape[a] != 1 for a in positions) or all(shape[a] == 1 or a >= first for a in reduced):
        return None
    # Sums of 16-bit values are rounded once.
    wide = node.dtype in NARROW and node.op not in ("amax", "amin")
    operand = reshape(cast(x, "float32") if wide else x, shape)
    rest = (*shape[:first], *(1,) * (x.rank - first))

    def first_stage(op: str) -> Node:
        return make(op, operand, axes=positions, keepdim=True, **_correction(op))

    def second_stage(op: str, value: Node) -> Node:
        return make(op, reshape(value, rest), axes=node["axes"], keepdim=node["keepdim"], **_correction(op))

    firsts = [first_stage(node.op)]
    result = second_stage("mean" if node.op == "var" else node.op, firsts[0])
    if node.op == "var":
        firsts.append(first_stage("mean"))
        result = make("add", result, second_stage("var", firsts[1]))
    return cast(result, node.dtype), firsts


def _correction(op: str) -> dict[str, Any]:
    return {"correction": 0} if op == "var" else {}


def _of_windows(node: Node, windows: Node, x: Node, elements: Elements, of_lines: int
                ) -> tuple[Node, list[Node]] | None:
    """A pool of ``windows``, by now those in ``x``. One window of all positions is no window."""
    below, size = windows.inputs[0], windows["kernel"][-1]
    axes = tuple(range(below.rank, windows.rank))
    if node.op not in POOLS or node["axes"] != axes or not node["keepdim"]:
        return None
    if windows["kernel"] == below.shape[2:] and are_inside(windows):
        if prod(windows["kernel"]) == 1 or not any(has_elements(below, a, elements) for a in elements.of(below)):
            return None
        value = (x.inputs[0] if x.op == "cast" else x).inputs[0]
        total = reduce(node.op, cast(value, x.dtype), tuple(range(2, below.rank)))
        return reshape(total, node.shape), [total]
    if size not in POOL_SIZES or not _is_plain(windows, -1):
        return None
    if _has_lines(windows, below, -2) and any(
            can_pool_lines(below, a, elements) for a in elements.of(below, of_lines)):
        if _has_lines(windows, below, -3) and any(
                can_pool_planes(below, a, elements) for a in elements.of(below, of_lines)):
            return _pool(node, x, (POOL_LINES, POOL_LINES, size))
        return _pool(node, x, (POOL_LINES, size))
    return _pool(node, x, (size,)) if any(can_pool(below, a, elements) for a in elements.of(below)) else None


def _has_lines(windows: Node, below: Node, axis: int) -> bool:
    """Whether windows are pairs along an axis, one after the other, and all of them inside."""
    return len(windows["kernel"]) >= -axis and _is_plain(windows, axis) and \
        windows["kernel"][axis] % POOL_LINES == 0 and \
        windows["kernel"][axis] * windows["size"][axis] <= below.shape[axis]


def _is_plain(windows: Node, axis: int) -> bool:
    """Whether windows follow one another along one of their axes, without gaps."""
    return windows["stride"][axis] == windows["kernel"][axis] and windows["dilation"][axis] == 1 and \
        not reaches_beyond(windows, axis)


def _pool(node: Node, x: Node, part: tuple[int, ...]) -> tuple[Node, list[Node]]:
    """A pool of the windows ``x`` (maybe converted), of those of sizes ``part`` along the last axes first."""
    windows = x.inputs[0] if x.op == "cast" else x
    kernel, stride, rank = windows["kernel"], windows["stride"], len(windows["kernel"])
    below = windows.inputs[0]
    size = (*(n // p for n, p in zip(below.shape[-len(part):-1], part[:-1], strict=True)), windows["size"][-1])
    last = make("windows", below, kernel=part, stride=part, padding=(0,) * len(part), dilation=(1,) * len(part),
                fill=windows["fill"], size=size)
    axes = tuple(range(below.rank, below.rank + len(part)))
    first = make(node.op, cast(last, x.dtype), axes=axes, keepdim=False)
    left = (*kernel[:-len(part)], *(k // p for k, p in zip(kernel[-len(part):], part, strict=True)))
    steps = (*stride[:-len(part)], *(s // p for s, p in zip(stride[-len(part):], part, strict=True)))
    if first.shape == below.shape[:-rank] + windows["size"] and all(a == 1 for a in (*left, *steps)) \
            and are_inside(windows):
        return reshape(first, node.shape), [first]
    rest = make("windows", first, kernel=left, stride=steps, padding=windows["padding"], dilation=windows["dilation"],
                fill=windows["fill"], size=windows["size"])
    return make(node.op, rest, axes=tuple(range(below.rank, below.rank + rank)), keepdim=True), [first]
