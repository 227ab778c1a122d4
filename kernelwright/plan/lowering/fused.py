"""Products with all that one kernel does of what stands around them: attention first, then batched products."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.lowering.attention import Attentions
from kernelwright.plan.lowering.batched import BatchedProducts
from kernelwright.plan.lowering.forms import PRODUCTS, searched
from kernelwright.plan.records import kept_whole, unrolled
from kernelwright.plan.rolling.roll import Rolled


def with_fused(roots: Iterable[Node], apart: Collection[Node], rolled: Rolled | None) -> Rolled | None:
    """The graph below ``roots``, or what ``rolled`` has made of it, with attention and batched products as single
    nodes; as it is given where there is none. apart: nodes of the graph that are in none."""
    roots = list(roots)
    for search in (Attentions, BatchedProducts):
        rolled = searched(search, roots, apart, rolled)
    return rolled


def fused(graph: Graph, kept: Mapping[Node, str]) -> frozenset[Node]:
    """The operators of a graph that such kernels do the work of, where some stay torch calls."""
    if not any(n.op in PRODUCTS for n in graph.nodes()):
        return frozenset()
    found = with_fused(graph.roots(), (*kept_whole(kept), *unrolled(kept)), None)
    return frozenset(n for nodes in found.covers.values() for n in nodes) if found is not None else frozenset()
