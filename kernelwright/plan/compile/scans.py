"""From a group around a scan to a Scan kernel: positions, loads and stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from kernelwright.ir.node import Node
from kernelwright.ir.ops.scans import SCANS
from kernelwright.plan.compile.buffers import InputBuffers
from kernelwright.plan.compile.loops import Apart, arithmetic
from kernelwright.plan.expressions import Expression, Index, Load, Reduced, replaced, walk
from kernelwright.plan.groups import Group
from kernelwright.plan.kernels import Scan, Store
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear, strides_of


@dataclass(frozen=True, slots=True)
class ScanLoop:
    """A compiled scan group, before it is known which results others read."""

    group: Group
    outer: tuple[int, ...]
    expression: Expression
    values: dict[Node, Expression]
    place: Index
    inputs: tuple[Node, ...]
    compute: str

    def kernel(self, outputs: tuple[Node, ...]) -> Scan:
        """The kernel that stores ``outputs``."""
        node = self.group.nodes[0]
        stores = tuple(Store(n, self.place, self.values[output]) for n, output in enumerate(outputs))
        kernel = Scan(self.outer, node.shape[node["axis"]], SCANS[node.op][0], self.expression,
                      node.get("exclusive", False), stores, tuple(n.dtype for n in self.inputs),
                      tuple(n.dtype for n in outputs), self.compute)
        return _merged(kernel)


def compile_scan(group: Group, stored: Callable[[Node], bool]) -> ScanLoop:
    """Compile a scan group. ``stored`` tells whether a node's value can be read from memory.

    Raises MustStore or Apart where the grouping has to change.
    """
    axis = group.axes[0]
    splits = {a: [s] for a, s in enumerate(group.domain)}
    while True:
        target = [group.nodes[0]]
        variables = [(a, i) for a in splits if a != axis for i, size in enumerate(splits[a]) if size != 1]
        try:
            return _compile(group, stored, splits, variables, target)
        except SplitAxis as split:
            if split.axis == len(variables):
                # The scanned axis stays whole: what would cut it is stored first, or its reader stands apart.
                node = target[-1]
                raise (MustStore(node.inputs[0]) if node is group.nodes[0] else Apart(node)) from split
            a, place = variables[split.axis]
            splits[a][place:place + 1] = [splits[a][place] // split.inner, split.inner]


def _compile(group: Group, stored: Callable[[Node], bool], splits: dict[int, list[int]],
             variables: list[tuple[int, int]], target: list[Node]) -> ScanLoop:
    scan, axis = group.nodes[0], group.axes[0]
    outer, length = tuple(splits[a][i] for a, i in variables), group.domain[axis]
    count = len(variables) + 1

    def along(a: int) -> Affine:
        if a == axis:
            steps = Affine((*(0,) * (count - 1), 1))
            return steps.scaled(-1).shifted(length - 1) if scan.get("reverse") else steps
        result = Affine((0,) * count)
        for part, stride in enumerate(strides_of(tuple(splits[a]))):
            if splits[a][part] != 1:
                result = result + Affine(tuple(stride * (v == (a, part)) for v in [*variables, None]))
        return result

    full: Position = tuple(along(a) for a in range(len(group.domain)))
    inputs = InputBuffers(group.nodes, stored)

    def resolve(node: Node, position: Position) -> Expression | None:
        if node is not scan:
            return None
        if position != full:
            raise Apart(target[-1])
        return Reduced(0)

    compute, strict = arithmetic(group, stored)
    puller = Puller((*outer, length), resolve, inputs, compute, strict, settled=group.settled)
    expression = puller.pull(scan.inputs[0], full)
    values: dict[Node, Expression] = {scan: Reduced(0)}
    for node in group.nodes[1:]:
        target.append(node)
        try:  # a reshape keeps the place of every element
            position = full if node.shape == group.domain else puller.reshaped(full, group.domain, node)
        except MustStore as problem:
            raise Apart(node) from problem
        values[node] = puller.pull(node, position)
    flat = linear(full, group.domain, count)
    return ScanLoop(group, outer, expression, values, Index(flat.coefficients, flat.constant), inputs.nodes, compute)


def _merged(kernel: Scan) -> Scan:
    """Neighbouring outer axes joined wherever all indices pass from one to the next contiguously."""
    roots = [kernel.expression, *(s.expression for s in kernel.stores)]
    found = [s.index for s in kernel.stores]
    for root in roots:
        for node in walk(root):
            if isinstance(node, Load):
                found += [node.index, *(g.index for g in node.guards)]
    groups: list[list[int]] = []
    for axis, size in enumerate(kernel.outer):
        if groups and all(i.strides[axis - 1] == i.strides[axis] * size for i in found):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    last = len(kernel.outer)

    def change(index: Index) -> Index:
        return Index((*(index.strides[g[-1]] for g in groups), index.strides[last]), index.offset)

    def moved(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        return replace(node, index=change(node.index),
                       guards=tuple(replace(g, index=change(g.index)) for g in node.guards))

    stores = tuple(Store(s.buffer, change(s.index), replaced(s.expression, moved)) for s in kernel.stores)
    return replace(kernel, outer=tuple(prod(kernel.outer[a] for a in g) for g in groups),
                   expression=replaced(kernel.expression, moved), stores=stores)
