"""What is done to a graph before it is cut into groups: lowering, then what brings reductions to contractions (sums
before affine maps, two stages, recomputing) and pools to reductions, and laying out."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from kernelwright.ir.graph import copied, in_own_memory, is_given, memory
from kernelwright.ir.node import Node, walk
from kernelwright.plan.contraction.products import ANCHORS
from kernelwright.plan.fusion.affine_sums import affine_sums
from kernelwright.plan.fusion.recompute import recompute
from kernelwright.plan.fusion.small_pools import inlined
from kernelwright.plan.fusion.two_stage import in_two_stages
from kernelwright.plan.layouts.channels_last import lay_out
from kernelwright.plan.lowering.deviations import from_deviations
from kernelwright.plan.lowering.lower import lower
from kernelwright.plan.lowering.traced import traced
from kernelwright.plan.records import KernelConfig
from kernelwright.plan.roles import roles_of
from kernelwright.plan.rolling.roll import Rolled


@dataclass(slots=True)
class Lowered:
    """A graph in primitives.

    values: for every root of the graph, the node that has its value. source: for every primitive, the graph's node that
    it came from. kept: what stays a torch call. anchors: contractions that become kernels. firsts: first stages of
    reductions, each with a lowered reduction that it is of and the graph's node of that; several may have the same
    first stage. stored: pointwise results to store: those of two second stages, the statistics that a contraction reads
    when it is recomputed, and pools that several read. loops: by the last values of loops that became recurrences,
    which are the source of these, all nodes that they do the work of.
    """

    values: dict[Node, Node]
    source: dict[Node, Node]
    kept: set[Node]
    anchors: dict[Node, KernelConfig]
    firsts: list[tuple[Node, Node, Node]]
    stored: set[Node]
    loops: dict[Node, tuple[Node, ...]] = field(default_factory=dict)

    def covered(self, node: Node) -> tuple[Node, ...]:
        """The graph's nodes whose work a primitive is part of."""
        return self.loops.get(self.source[node], (self.source[node],))

    @property
    def roles(self) -> dict[Node, str]:
        """What each node becomes."""
        return roles_of(walk(self.values.values()), self.kept, self.anchors)

    def move(self, moved: Mapping[Node, Node], source: dict[Node, Node] | None = None) -> None:
        """Go over to another graph. moved: for every node the one of its value; source: where that graph's nodes came
        from, if it is not from what they were made for."""
        made = ((old, (new,)) for old, new in moved.items())
        self.source = traced(made, self.source) if source is None else source
        self.values = {n: moved[v] for n, v in self.values.items()}
        self.kept = {moved.get(n, n) for n in self.kept}
        self.anchors = {moved[n]: config for n, config in self.anchors.items()}
        self.firsts = [(moved[first], reduction, node) for first, reduction, node in self.firsts]
        self.stored = {moved[n] for n in self.stored}


def prepare(roots: Iterable[Node], kept: Collection[Node], move_bias: bool, channels_last: frozenset[Node],
            products: Mapping[Node, KernelConfig], whole: Collection[Node], rolled: Rolled | None = None) -> Lowered:
    """The graph below ``roots`` lowered, its reductions moved and in two stages where that may help, and laid out.

    kept, move_bias, channels_last: see :func:`kernelwright.plan.planner.make_plan`. products: contractions that become
    kernels. whole: lowered reductions that stay in one stage. rolled: the graph with its loops as recurrences, which is
    taken in its place; None where it has none.
    """
    moved = {n: n for n in (*roots, *kept, *products)} if rolled is None else rolled.moved
    held, anchored = ({moved[n] for n in some if n in moved} for some in (kept, products))
    lowered, source = lower([moved[n] for n in roots], frozenset(held), move_bias=move_bias,
                            products=frozenset(anchored))
    if rolled is not None:
        source = {n: rolled.source[own] for n, own in source.items()}
    values = {n: lowered[moved[n]] for n in roots}
    anchors = {n: products[source[n]] for n in walk(values.values()) if n.op in ANCHORS and source[n] in products}
    graph = Lowered(values, source, {lowered[n] for n in held if n in lowered}, anchors, [], set(),
                    {} if rolled is None else rolled.covers)
    if any(config.reduces for config in anchors.values()):
        graph.move(affine_sums(graph.values.values(), graph.roles, _reducing(graph)))
        of_lines = [n for n in _reducing(graph) if (graph.anchors[n].recompute or graph.anchors[n]).lines]
        staged = in_two_stages(graph.values.values(), graph.roles, _reducing(graph), whole, of_lines)
        firsts = [(first, reduction, graph.source[reduction]) for first, reduction in staged.firsts]
        graph.move(staged.moved)
        graph.firsts, graph.stored = firsts, staged.combined
    if any(config.recompute is not None for config in graph.anchors.values()):
        recomputed = recompute(graph.values.values(), graph.roles, graph.anchors)
        graph.move(recomputed.moved, recomputed.sources(graph.source))
        graph.anchors, graph.stored = recomputed.anchors, graph.stored | recomputed.stored
    graph.move(from_deviations(graph.values.values(), graph.roles, graph.anchors))
    moved, stored = inlined(graph.values.values(), graph.roles, {first for first, _, _ in graph.firsts})
    graph.move(moved)
    graph.stored |= stored
    taken: dict[Node, Hashable] = {}
    for root, value in graph.values.items():
        # A pool of single elements, say, is no operator any more: what returned new memory does so still.
        own = copied(value) if is_given(value) and not is_given(root) else value
        own = in_own_memory(own, memory(root), taken)
        graph.values[root] = own
        while own is not value:
            graph.source[own] = root
            own = own.inputs[0]
    if channels_last:
        laid_out = lay_out(graph.values.values(), graph.kept, graph.source, channels_last)
        graph.values = {n: laid_out.values[v] for n, v in graph.values.items()}
        graph.kept, graph.source = {laid_out.computed[n] for n in graph.kept}, laid_out.source
        graph.anchors = {laid_out.computed[n]: c for n, c in graph.anchors.items()}
        graph.firsts = [(laid_out.computed[first], reduction, node) for first, reduction, node in graph.firsts]
        graph.stored = {laid_out.computed[n] for n in graph.stored}
    return graph


def _reducing(graph: Lowered) -> list[Node]:
    """Contractions that take reductions along."""
    return [n for n, config in graph.anchors.items() if config.reduces]
