"""Products with all that one kernel does of what stands around them: attention first, then batched products."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.lowering.attention import Attentions, NarrowAttentions
from kernelwright.plan.lowering.batched import BatchedProducts
from kernelwright.plan.lowering.forms import PRODUCTS, Forms, searched
from kernelwright.plan.records import kept_whole, unrolled
from kernelwright.plan.rolling.roll import Rolled

#: What is looked for, in this order, by the kind of kernel that it becomes.
_SEARCHES: Mapping[str, type[Forms]] = MappingProxyType({
    "attention": Attentions, "attention in 16 bits": NarrowAttentions, "batched product": BatchedProducts})
#: All kinds.
FUSED = tuple(_SEARCHES)


def with_fused(roots: Iterable[Node], apart: Collection[Node], rolled: Rolled | None, kinds: Collection[str]
               ) -> Rolled | None:
    """The graph below ``roots``, or what ``rolled`` has made of it, with what becomes kernels of these kinds as single
    nodes; as it is given where there is none. apart: nodes of the graph that are in none."""
    roots = list(roots)
    for kind, search in _SEARCHES.items():
        if kind in kinds:
            rolled = searched(search, roots, apart, rolled)
    return rolled


def fused(graph: Graph, kept: Mapping[Node, str], kinds: Collection[str]) -> frozenset[Node]:
    """The operators of a graph that kernels of these kinds do the work of, where some stay torch calls."""
    if not kinds or not any(n.op in PRODUCTS for n in graph.nodes()):
        return frozenset()
    found = with_fused(graph.roots(), (*kept_whole(kept), *unrolled(kept)), None, kinds)
    return frozenset(n for nodes in found.covers.values() for n in nodes) if found is not None else frozenset()
