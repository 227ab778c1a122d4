"""Buffers that a captured forward updates: old values that outlive the update, and who writes the new ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelwright.ir.graph import BufferUpdate, Graph, copied, memory
from kernelwright.ir.node import Node, make, rebuild, walk


def settle_buffers(graph: Graph) -> Graph:
    """The graph with its buffer updates safe to run after everything else, one after the other.

    - A batch norm whose result nobody reads has no torch call that could update its statistics, and one
      whose statistics others read must not update them unseen: those updates are written out.
    - A result, or another buffer's new value, that is the old memory of an updated buffer becomes a copy.
    """
    owners = _sole_owners(graph)
    changed = {e.name for e in graph.effects}
    roots = [*graph.outputs, *(e.value for e in graph.effects), *(c.value for c in graph.checks)]
    replaced: dict[Node, Node] = {}
    for node in walk(roots):
        built = rebuild(node, tuple(replaced[i] for i in node.inputs))
        if node.op == "batch_norm_training" and node["running"] and node not in owners:
            built = make(node.op, *built.inputs, origin=node.origin, **{**dict(node.attributes), "running": None})
        replaced[node] = built
    outputs = tuple(_apart(replaced[n], changed) for n in graph.outputs)
    effects = tuple(BufferUpdate(e.name, _apart(replaced[e.value], changed),
                                 replaced.get(e.owner) if e.owner in owners else None) for e in graph.effects)
    checks = tuple(replace(c, value=replaced[c.value]) for c in graph.checks)
    return replace(graph, outputs=outputs, effects=effects, checks=checks)


def _sole_owners(graph: Graph) -> set[Node]:
    """Batch norms that run for the outputs and whose old statistics nothing but their own update reads."""
    owners = {e.owner for e in graph.effects if e.owner is not None}
    while True:
        alive = set(walk((*graph.outputs, *(e.value for e in graph.effects if e.owner not in owners),
                          *(c.value for c in graph.checks))))
        read = {n["name"] for n in alive if n.op == "buffer"}
        left = {o for o in owners if o in alive and not read & set(o["running"])}
        if left == owners:
            return owners
        owners = left


def _apart(node: Node, changed: Iterable[str]) -> Node:
    """The node, or a copy where it is the memory of a buffer that changes."""
    below = memory(node)
    return copied(node) if below.op == "buffer" and below["name"] in changed else node
