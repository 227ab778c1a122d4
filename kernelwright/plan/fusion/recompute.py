"""Contractions that are recomputed, for the sake of statistics of their whole result.

A norm behind a contraction needs reductions over positions of all its results before it gives the first of its own. One
kernel stores the results, and whatever normalises them reads them from memory. Where products are cheap beside that it
costs less to recompute them: the kernel of pass 1 takes the reductions over positions and stores nothing else, that of
pass 2 has the statistics and stores what follows from them. So the graph gets a second node for the contraction::

    n(a, t(f(a)))   becomes   n(a', t(f(a)))        with a = a' = conv(x, w), n, f: point by point,
                                                    t: reductions over positions

Those stay with the first one, everything else moves to the second; how that is grouped, and what joins which kernel,
follows from the rules for any contraction. What the second one needs of the statistics alone is stored, as small as it
is (a reciprocal deviation, say, not a variance; of what divides, its reciprocal), and for each channel where it would
lie across them otherwise: a norm of groups has one value for several.

Both kernels form the products by one scheme. Their sums are alike to within its rounding, which is that of any two
kernels that the certificate takes; a mean of all results is moved by far less than one of them. Or the first one forms
none, and has the statistics from products of x with itself (the scheme "correlation" of a `Contraction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernelwright.algebra.build import align
from kernelwright.ir.node import Node, make, rebuild, users, walk
from kernelwright.plan.contraction.positions import first_position, positions_of
from kernelwright.plan.contraction.products import NARROW_TYPES
from kernelwright.plan.fusion.epilogue import Below, Joined, Reached, joining
from kernelwright.plan.lowering.traced import traced
from kernelwright.plan.records import KernelConfig

# Views that only say where an element stands.
_VIEWS = ("reshape", "expand", "permute")


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A graph in which some contractions stand twice, once for each pass.

    moved: for every node of the given graph, the one of its value. anchors: the contractions that become kernels, and
    how. stored: what those of pass 2 read of statistics. firsts: of what is made point by point of recomputed
    contractions, for each of those the node that is made of the one of pass 1.
    """

    moved: dict[Node, Node]
    anchors: dict[Node, KernelConfig]
    stored: set[Node]
    firsts: dict[Node, dict[Node, Node]]

    def sources(self, source: Mapping[Node, Node]) -> dict[Node, Node]:
        """Where each node of the new graph came from. source: the same of the given graph."""
        return traced(((old, (moved, *self.firsts.get(old, {}).values())) for old, moved in self.moved.items()), source)


def recompute(roots: Iterable[Node], roles: Mapping[Node, str], anchors: Mapping[Node, KernelConfig]) -> Recomputed:
    """The graph below ``roots`` with a second node for those ``anchors`` that are to have one
    (`KernelConfig.recompute`), if something reads their results together with reductions over positions of them.

    roles: what each node becomes (:func:`kernelwright.plan.roles.roles_of`).
    """
    roots = list(roots)
    order = list(walk(roots))
    joined = joining(order, roles, users(roots), roots, anchors, ())
    # Of what reads a second node, only reductions over positions are of the first.
    below = Below(order, joined.anchors, joined.positions)
    reached = Reached(roles, below)
    read = 0
    for node in order if joined.positions else ():
        reached.place(node)
        read |= reached.by(node) & joined.beyond[node] if roles[node] == "pointwise" else 0
    recomputed = {n for n in joined.anchors.members(read) if anchors[n].recompute is not None and anchors[n].reduces}
    build = _Builder(roles, joined, reached, recomputed)
    for node in order:
        build.place(node)
    chosen = {build.moved[n]: replace(config, recompute=None) for n, config in anchors.items() if n not in recomputed}
    for node in joined.anchors.members(joined.anchors.some(recomputed)):
        second = anchors[node].recompute
        assert second is not None  # what is recomputed has one
        chosen |= {build.firsts[node][node]: anchors[node], build.moved[node]: second}
    return Recomputed(build.moved, chosen, build.stored, build.firsts)


class _Builder:
    """The new graph, operands first.

    firsts: of what is made point by point of ``recomputed`` contractions, for each of those the node that is made of
    the one of pass 1. reached: the contractions whose kernels of pass 2 may compute each node.
    """

    def __init__(self, roles: Mapping[Node, str], joined: Joined, reached: Reached, recomputed: set[Node]) -> None:
        self.roles, self.joined, self.reached, self.recomputed = roles, joined, reached, recomputed
        self.among = joined.anchors.some(recomputed)
        self.moved: dict[Node, Node] = {}
        self.firsts: dict[Node, dict[Node, Node]] = {}
        self.stored: set[Node] = set()

    def place(self, node: Node) -> None:
        """Build a node; its inputs have been placed."""
        inputs = tuple(self.moved[i] for i in node.inputs)
        anchor = self.joined.positions.get(node)
        if node in self.recomputed:
            self.firsts[node] = {node: rebuild(node, inputs)}
            attributes = {**dict(node.attributes), "recompute": True}
            self.moved[node] = make(node.op, *inputs, origin=node.origin, **attributes)
        elif anchor in self.recomputed:
            (operand,) = node.inputs
            self.moved[node] = rebuild(node, (self.firsts[operand][anchor],))
        elif self.roles[node] not in ("pointwise", "view"):
            self.moved[node] = rebuild(node, inputs)
        else:
            of = list(self.joined.anchors.members(self.reached.by(node) & self.among)) if self.among else []
            for a in of:
                made = tuple(self.firsts.get(i, {}).get(a, m) for i, m in zip(node.inputs, inputs, strict=True))
                self.firsts.setdefault(node, {})[a] = rebuild(node, made)
            values = tuple(self._statistic(i, m, node, of) for i, m in zip(node.inputs, inputs, strict=True))
            inverted = node.op == "div" and values[1] is not inputs[1]
            self.moved[node] = make("mul", *values, origin=node.origin) if inverted else rebuild(node, values)

    def _statistic(self, operand: Node, moved: Node, node: Node, anchors: Iterable[Node]) -> Node:
        """What ``node``, computed of second results, reads of an operand: a statistic of the first is stored, and where
        it divides by one another node, its reciprocal."""
        divides = node.op == "div" and operand is node.inputs[1] and operand is not node.inputs[0] and \
            node.dtype not in NARROW_TYPES
        for anchor in anchors:
            if self.roles[node] == "pointwise" and anchor not in self.firsts.get(operand, {}) and \
                    self.joined.is_beyond(operand, anchor):
                first = first_position(node.shape, positions_of(anchor)) if node.size == anchor.size else None
                value = align(moved, node.rank)
                if first is None or any(size != 1 for size in value.shape[first:]):
                    continue  # nobody knows which axes are channels, or it is none
                if divides:
                    value, divides = make("reciprocal", value, origin=node.origin), False
                moved = _for_channels(value, node, anchor, first)
                below = moved
                while below.op in _VIEWS:
                    below = below.inputs[0]
                self.stored.update([below] if below.kind == "pointwise" else [])
        return moved


def _for_channels(value: Node, node: Node, anchor: Node, first: int) -> Node:
    """A statistic that ``node`` reads for each of the anchor's results, so that its elements are those of channels.

    It is left as it is where there is one of it for all channels of an entry of the batch, or for each. first: the axis
    of ``node`` with which positions begin.
    """
    shape = (*node.shape[:first], *value.shape[first:])
    single = {value.shape[axis] == 1 for axis in range(1, first) if node.shape[axis] != 1}
    if value.shape == shape or (node.shape[0] == anchor.shape[0] and len(single) < 2):
        return value
    return make("copy", make("expand", value, shape=shape), origin=value.origin)
