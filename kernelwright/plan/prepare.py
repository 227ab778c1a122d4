"""What is done to a graph before it is cut into groups: lowering, halving, computing twice, laying out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kernelwright.ir.node import Node, walk
from kernelwright.plan.groups import roles_of
from kernelwright.plan.halves import in_halves
from kernelwright.plan.layouts import lay_out
from kernelwright.plan.lower import lower
from kernelwright.plan.products import ANCHORS
from kernelwright.plan.records import Choice
from kernelwright.plan.twice import computed_twice


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph in primitives.

    values: for every root of the graph, the node that has its value. source: for every primitive, the graph's node that
    it came from. kept: what stays a torch call. anchors: contractions that become kernels. firsts: first halves of
    reductions, each with a lowered reduction that it is of and the graph's node of that; several may have the same
    first half. stored: pointwise results to store, which are those of two second halves and the statistics that a
    contraction reads when it is computed again.
    """

    values: dict[Node, Node]
    source: dict[Node, Node]
    kept: set[Node]
    anchors: dict[Node, Choice]
    firsts: list[tuple[Node, Node, Node]]
    stored: set[Node]


def prepare(roots: Iterable[Node], kept: Collection[Node], move_bias: bool, channels_last: frozenset[Node],
            products: Mapping[Node, Choice], whole: Collection[Node]) -> Lowered:
    """The graph below ``roots`` lowered, its reductions halved where that may help, and laid out.

    kept, move_bias, channels_last: see :func:`kernelwright.plan.planner.make_plan`. products: contractions that become
    kernels. whole: lowered reductions that are not halved.
    """
    lowered, source = lower(roots, frozenset(kept), move_bias=move_bias, products=frozenset(products))
    values = {n: lowered[n] for n in roots}
    kept_lowered = {lowered[n] for n in kept if n in lowered}
    anchors = {n: products[source[n]] for n in walk(values.values()) if n.op in ANCHORS and source[n] in products}
    firsts: list[tuple[Node, Node, Node]] = []
    stored: set[Node] = set()
    reducing = [n for n, choice in anchors.items() if choice.reduces]
    if reducing:
        roles = roles_of(walk(values.values()), kept_lowered, anchors)
        halves = in_halves(values.values(), roles, reducing, whole)
        firsts = [(first, reduction, source[reduction]) for first, reduction in halves.firsts]
        moved, stored = halves.moved, halves.combined
        values = {n: moved[v] for n, v in values.items()}
        kept_lowered = {moved.get(n, n) for n in kept_lowered}
        anchors = {moved[n]: choice for n, choice in anchors.items()}
        source = halves.sources(source)
    if any(choice.again is not None for choice in anchors.values()):
        roles = roles_of(walk(values.values()), kept_lowered, anchors)
        twice = computed_twice(values.values(), roles, anchors)
        moved, anchors, source = twice.moved, twice.anchors, twice.sources(source)
        values = {n: moved[v] for n, v in values.items()}
        kept_lowered = {moved.get(n, n) for n in kept_lowered}
        firsts = [(moved[first], reduction, node) for first, reduction, node in firsts]
        stored = {moved[n] for n in stored} | twice.stored
    if channels_last:
        laid_out = lay_out(values.values(), kept_lowered, source, channels_last)
        values = {n: laid_out.values[v] for n, v in values.items()}
        kept_lowered, source = {laid_out.computed[n] for n in kept_lowered}, laid_out.source
        anchors = {laid_out.computed[n]: c for n, c in anchors.items()}
        firsts = [(laid_out.computed[first], reduction, node) for first, reduction, node in firsts]
        stored = {laid_out.computed[n] for n in stored}
    return Lowered(values, source, kept_lowered, anchors, firsts, stored)
