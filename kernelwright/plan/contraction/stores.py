"""What a group stores of a contraction's sums: expressions and places over a record's domain, and what is reduced.

Every result shows elements of the anchor's output, maybe in another shape, or what a reduction leaves of them. Its
expression is pulled from where it has the element that belongs to a point of the domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from kernelwright.algebra.build import REDUCTIONS
from kernelwright.ir.node import Node
from kernelwright.ir.recursion import Task, run
from kernelwright.plan.compile.loops import Apart, reduced_value
from kernelwright.plan.contraction.axes import FineDomain, indices_of
from kernelwright.plan.contraction.positions import pooled, windows_below
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Index, Reduced, walk
from kernelwright.plan.groups import Group
from kernelwright.plan.kernels import Reduction
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear
from kernelwright.plan.reading.typed import as_real

_Known = dict[Node, Position | None]
#: Before positions in a record's domain: batch, groups, channels.
_CHANNEL, _SPATIAL = 2, 3


class Stores:
    """The results of a group, one after the other, and the reductions that they are found to need.

    sizes: of the record's domain. place: the position in the anchor of a point of a domain. stored: whether a node's
    value can be read from memory. buffer: the number of the input that holds a node, or None.
    """

    def __init__(self, group: Group, sizes: tuple[int, ...], place: Callable[[FineDomain], Position],
                 stored: Callable[[Node], bool], buffer: Callable[[Node], int | None]) -> None:
        self.group, self.sizes, self.place, self.stored, self.buffer = group, sizes, place, stored, buffer
        self.anchor = group.nodes[0]
        self.own = [n for n in group.nodes if n.op in REDUCTIONS]
        # Results of reductions count from 1: 0 are the sums, and no reduction.
        self.found = [Reduction("", Reduced(0))]
        self.meaning: dict[Node, Expression] = {}

    def reduced(self, record: Contraction) -> Contraction:
        """The record with what is reduced of it."""
        found = tuple(self.found[1:])
        if self.group.over == "positions":
            return replace(record, position_reductions=found)
        if self.group.over == "windows":
            planes, lines, size = (1, 1, *self._window)[-3:]
            return replace(record, pools=found, pool_size=size, pool_lines=lines, pool_planes=planes)
        return replace(record, reductions=found)

    @property
    def _window(self) -> tuple[int, ...]:
        """Planes of a window, lines of each and positions of each, as far as there are several."""
        return next(windows["kernel"] for n in self.own if (windows := windows_below(n)) is not None)

    def store(self, node: Node) -> tuple[Expression, Index]:
        """What is stored for ``node`` at each point of its domain, and where. A reduction is registered on the way.

        Raises MustStore or Apart where the grouping has to change, SplitAxis for an axis of the domain.
        """
        if self.group.over == "windows" and node in self.own:
            return self._pool(node)
        if self.group.over == "windows" and node.size != self.anchor.size:
            pooled_domain = self._pooled_domain()
            return self._at(node, node, pooled_domain,
                            lambda: {n: narrowed(self.place(pooled_domain), n) for n in self.meaning})
        value, index = self._at_sums(node, node)
        if node in self.own:
            self.meaning[node] = value = reduced_value(node, value, self.own, self.found)
        if not self._is_once(value, index):
            raise Apart(node)
        return value, index

    def _is_once(self, value: Expression, index: Index) -> bool:
        """Whether a result that stands once for all points that are reduced does not depend on them."""
        axes = self._reduced_axes()
        moves = any(i.strides[axis] for i in indices_of([value]) for axis in axes)
        if self.group.over == "positions" and any(isinstance(e, Reduced) and e.reduction for e in walk(value)):
            return not moves and Reduced(0) not in walk(value) and not any(index.strides[axis] for axis in axes)
        return self.group.over != "channels" or not self.meaning or index.strides[_CHANNEL] != 0 or not moves

    def _reduced_axes(self) -> range:
        return range(_SPATIAL, len(self.sizes)) if self.group.over == "positions" else range(_CHANNEL, _CHANNEL + 1)

    def _pool(self, node: Node) -> tuple[Expression, Index]:
        """A pool's result: its value is reduced over the whole domain, its place is over windows."""
        value, index = self._at_sums(node, pooled(node))
        flat = linear(self.place(FineDomain(self.sizes)), self.anchor.shape, len(self.sizes))
        if index != Index(flat.coefficients, flat.constant):
            raise Apart(node)
        self.meaning[node] = reduced_value(node, value, self.own, self.found)
        flat = linear(self.place(self._pooled_domain()), node.shape, len(self.sizes))
        return self.meaning[node], Index(flat.coefficients, flat.constant)

    def _pooled_domain(self) -> FineDomain:
        window = self._window
        sizes = zip(self.sizes[-len(window):], window, strict=True)
        return FineDomain((*self.sizes[:-len(window)], *(size // part for size, part in sizes)))

    def _at_sums(self, target: Node, node: Node) -> tuple[Expression, Index]:
        """The value of ``node``, or of what it reduces, over the record's domain, and its place."""
        domain = FineDomain(self.sizes)
        return self._at(target, node, domain, lambda: {self.anchor: narrowed(self.place(domain), self.anchor)})

    def _at(self, target: Node, node: Node, domain: FineDomain, start: Callable[[], _Known]
            ) -> tuple[Expression, Index]:
        """The value of ``node`` over a domain, and its place. start: the positions to begin with; target: the result
        for which that is asked."""
        above = self.meaning if self.group.over != "windows" else ()
        while True:
            known = start()
            reduced = Affine((0,) * len(domain.sizes))
            for axis in self._reduced_axes():
                reduced = reduced + domain.variable(axis)
            puller = Puller(domain.sizes, partial(self._result, target, known), self.buffer, fuses=True,
                            settled=self.group.settled)
            try:
                for other in above:
                    if run(self._shown(other, puller, known, reduced)) is None:
                        raise Apart(target)
                position = run(self._shown(node, puller, known, reduced))
                if position is None:
                    raise Apart(target)
                if node in self.own:
                    x = node.inputs[0]
                    below = known[x]
                    assert below is not None  # a reduction is shown where its operand is
                    value = as_real(x, puller.pull(x, below))
                else:
                    value = puller.pull(node, position)
                break
            except SplitAxis as split:
                domain.split(split.axis, split.inner)
            except MustStore as problem:
                if problem.node in self.group.nodes or self._above_sums(problem.node):
                    raise Apart(target) from problem
                raise
        flat = linear(position, node.shape, len(domain.sizes))
        return domain.whole(value, Index(flat.coefficients, flat.constant))

    def _result(self, target: Node, known: Mapping[Node, Position | None], node: Node, position: Position
                ) -> Expression | None:
        if node is not self.anchor and node not in self.meaning:
            return None
        if narrowed(position, node) != known.get(node):
            raise Apart(target)
        return self.meaning.get(node, Reduced(0))

    def _shown(self, node: Node, puller: Puller, known: _Known, reduced: Affine) -> Task[Position | None]:
        """Where ``node`` has the element that belongs to the point of the domain; None where it does not show it."""
        if node in known:
            return known[node]
        known[node] = None
        if node in self.own:
            below = yield self._shown(node.inputs[0], puller, known, reduced)
            known[node] = None if below is None else _left_over(node, below, reduced)
            return known[node]
        for operand in node.inputs:
            if operand.size != node.size or (self.stored(operand) and operand not in self.group.nodes):
                continue
            below = yield self._shown(operand, puller, known, reduced)
            if below is not None:
                known[node] = self._moved(node, operand, below, puller)
                break
        return known[node]

    def _moved(self, node: Node, operand: Node, below: Position, puller: Puller) -> Position | None:
        zero = puller.zero()
        if node.kind == "pointwise" or node.op in ("expand", "cast"):
            return (*(zero,) * (node.rank - operand.rank), *below)
        if node.op == "reshape":
            return narrowed(puller.reshaped(below, operand.shape, node), node)
        if node.op == "permute":
            return tuple(below[axis] for axis in node["axes"])
        if node.op == "flip":
            return tuple(p.scaled(-1).shifted(s - 1) if a in node["axes"] and s != 1 else p
                         for a, (p, s) in enumerate(zip(below, node.shape, strict=True)))
        return None

    def _above_sums(self, node: Node) -> bool:
        """Whether a node needs the sums: storing it first would need this very kernel."""
        stack, seen = [node], set()
        while stack:
            current = stack.pop()
            if current is self.anchor:
                return True
            if current not in seen:
                seen.add(current)
                stack += current.inputs
        return False


def narrowed(position: Position, node: Node) -> Position:
    """The position with nothing along axes of size one, so that equal places compare equal."""
    return tuple(Affine((0,) * len(p.coefficients)) if s == 1 else p
                 for p, s in zip(position, node.shape, strict=True))


def _left_over(node: Node, below: Position, reduced: Affine) -> Position | None:
    """The position in a reduction of what stands at ``below`` in its operand; None where that is not the same at all
    points that differ in the variables of ``reduced``, which are as many as it reduces, and so for them alone."""
    kept = [p for axis, p in enumerate(below) if axis not in node["axes"]]
    if any(a and c for p in kept for a, c in zip(p.coefficients, reduced.coefficients, strict=True)):
        return None
    if node["keepdim"]:
        zero = Affine((0,) * len(reduced.coefficients))
        kept = [zero if axis in node["axes"] else p for axis, p in enumerate(below)]
    return narrowed(tuple(kept), node)
