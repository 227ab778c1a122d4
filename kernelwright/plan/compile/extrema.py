"""From a group around an argmax or argmin to an Extremum kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.ir.node import Node
from kernelwright.plan.compile.buffers import InputBuffers
from kernelwright.plan.compile.loops import Apart, arithmetic
from kernelwright.plan.expressions import Expression, Index, Reduced
from kernelwright.plan.groups import Group
from kernelwright.plan.kernels import Extremum, Store
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear, strides_of


@dataclass(frozen=True, slots=True)
class ExtremumLoop:
    """A compiled group, before it is known which results others read."""

    group: Group
    outer: tuple[int, ...]
    length: int
    expression: Expression
    values: dict[Node, Expression]
    places: dict[Node, Index]
    inputs: tuple[Node, ...]
    compute: str

    def kernel(self, outputs: tuple[Node, ...]) -> Extremum:
        """The kernel that stores ``outputs``."""
        stores = tuple(Store(n, self.places[output], self.values[output]) for n, output in enumerate(outputs))
        kind = "max" if self.group.nodes[0].op in ("argmax", "amax") else "min"
        return Extremum(self.outer, self.length, kind, self.expression, stores, tuple(n.dtype for n in self.inputs),
                        tuple(n.dtype for n in outputs), self.compute)


def compile_extremum(group: Group, stored: Callable[[Node], bool]) -> ExtremumLoop:
    """Compile a group of an extremum and its place. ``stored`` tells whether a node's value can be read from memory.

    Raises MustStore or Apart where the grouping has to change.
    """
    axis, first = group.axes[0], group.nodes[0]
    splits = {a: [s] for a, s in enumerate(group.domain)}
    while True:
        variables = [(a, i) for a in splits if a != axis for i, size in enumerate(splits[a]) if size != 1]
        target = [first]
        try:
            return _compile(group, stored, splits, variables, target)
        except SplitAxis as split:
            if split.axis == len(variables):  # the axis stays whole
                raise MustStore(first.inputs[0]) from split
            a, place = variables[split.axis]
            splits[a][place:place + 1] = [splits[a][place] // split.inner, split.inner]


def _compile(group: Group, stored: Callable[[Node], bool], splits: dict[int, list[int]],
             variables: list[tuple[int, int]], target: list[Node]) -> ExtremumLoop:
    axis, first = group.axes[0], group.nodes[0]
    outer, count = tuple(splits[a][i] for a, i in variables), len(variables) + 1
    zero = Affine((0,) * count)

    def along(a: int) -> Affine:
        if a == axis:
            return Affine((*(0,) * (count - 1), 1))
        result = zero
        for part, stride in enumerate(strides_of(tuple(splits[a]))):
            if splits[a][part] != 1:
                result = result + Affine(tuple(stride * (v == (a, part)) for v in [*variables, None]))
        return result

    full: Position = tuple(along(a) for a in range(len(group.domain)))
    still = [full[a] for a in range(len(group.domain)) if a != axis and group.domain[a] != 1]
    inputs = InputBuffers(group.nodes, stored)
    own = {n: Reduced(0, int(n.op in ("argmax", "argmin"))) for n in group.nodes if n.op in _OWN}

    def resolve(node: Node, position: Position) -> Expression | None:
        if node not in own:
            return None
        if [p for p, s in zip(position, node.shape, strict=True) if s != 1] != still or own[node].component:
            raise Apart(target[-1])  # places are integers: read from memory
        return own[node]

    compute, strict = arithmetic(group, stored)
    puller = Puller((*outer, group.domain[axis]), resolve, inputs, compute, strict, settled=group.settled)
    expression = puller.pull(first.inputs[0], full)
    values: dict[Node, Expression] = dict(own)
    places: dict[Node, Index] = {}
    for node in group.nodes:
        left = iter(still)
        position = tuple(next(left) if s != 1 else zero for s in node.shape)
        if node not in own:
            target.append(node)
            values[node] = puller.pull(node, position)
        flat = linear(position, node.shape, count)
        places[node] = Index(flat.coefficients, flat.constant)
    return ExtremumLoop(group, outer, group.domain[axis], expression, values, places, inputs.nodes, compute)


_OWN = ("argmax", "argmin", "amax", "amin")
