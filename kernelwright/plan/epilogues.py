"""Which results a contraction stores in place of its sums.

What follows a contraction costs nothing in its epilogue, where every element is at hand once. Computed where it is
read instead, it costs its operations for each reader, and twice where an operand is packed. So a chain of pointwise
operators on a contraction's sums is stored at its end, if nobody needs the sums by themselves.

Reductions over all output channels of a position belong to the chain: a tile that is as wide as that has the whole row
of them. Each saves a pass over the sums and, where nobody else reads these, their way to memory and back. It costs
walks of the epilogue through shared memory, and up to 128 channels no more than that, as tiles that multiply fast are
as wide; up to `MOST_REDUCED` a tile has fewer rows, so that tuning measures both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod

from kernelwright.ir.node import Node, walk
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.products import MOST_REDUCED, TYPES, channels_of
from kernelwright.plan.records import Choice


def channel_reductions(order: Iterable[Node], roles: Mapping[Node, str], products: Mapping[Node, Choice],
                       apart: Collection[Node]) -> dict[Node, Node]:
    """The reductions that may join a contraction, and which one: as far as sizes tell, over all its output channels.

    order: nodes, operands first. apart: nodes that have turned out to join nothing.
    """
    result: dict[Node, Node] = {}
    if not any(choice.reduces for choice in products.values()):
        return result
    for node in order:
        if roles[node] != "reduction" or node in apart or node.dtype not in TYPES:
            continue
        operand = node.inputs[0]
        count = prod(operand.shape[axis] for axis in node["axes"])
        for anchor in _anchors(node, roles, result) if 1 < count <= MOST_REDUCED else ():
            if products[anchor].reduces and anchor.size == operand.size and channels_of(anchor) == count:
                result[node] = anchor
    return result


def ends_sums(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], roots: list[Node],
              joined: Mapping[Node, Node]) -> bool:
    """Whether a pointwise result is the end of such a chain. joined: what `channel_reductions` found."""
    if not _has_other_readers(node, roles, readers, joined):
        return False
    return any(anchor.size == node.size and ITEM_BYTES[node.dtype] <= ITEM_BYTES[anchor.dtype]
               and _all_uses_pass(anchor, node, roles, readers, roots, joined)
               for anchor in _anchors(node, roles, joined))


def _has_other_readers(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                       joined: Mapping[Node, Node]) -> bool:
    """Whether something reads the result that is no part of the chain, through views or not."""
    return any(_has_other_readers(r, roles, readers, joined) if roles[r] == "view" else
               roles[r] != "pointwise" and r not in joined for r in readers[node])


def _anchors(node: Node, roles: Mapping[Node, str], joined: Mapping[Node, Node]) -> Iterator[Node]:
    """The contractions whose kernel may compute the node from its sums, and from reductions that joined it.

    Nothing else that is read may need the sums.
    """
    for anchor in dict.fromkeys(joined.get(base, base) for base in _bases(node, roles, ())):
        if roles[anchor] == "contraction":
            below = _bases(node, roles, [r for r, a in joined.items() if a is anchor])
            if anchor in below and not any(anchor in walk([other]) for other in below if other is not anchor):
                yield anchor


def _bases(node: Node, roles: Mapping[Node, str], through: Collection[Node]) -> list[Node]:
    """What an evaluation of the node reads from memory, if it computes the nodes in ``through`` by itself."""
    result: list[Node] = []
    seen: set[Node] = set()
    stack = list(node.inputs)
    while stack:
        current = stack.pop()
        if current in seen or current.op == "constant":
            continue
        seen.add(current)
        if roles[current] in ("pointwise", "view") or current in through:
            stack += current.inputs
        else:
            result.append(current)
    return result


def _all_uses_pass(anchor: Node, node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                   roots: list[Node], joined: Mapping[Node, Node]) -> bool:
    """Whether whatever reads the anchor does so through ``node`` alone."""
    stack, seen = [anchor], {anchor}
    while stack:
        current = stack.pop()
        if current in roots:
            return False
        for reader in readers[current]:
            if reader is node or reader in seen:
                continue
            if roles[reader] not in ("pointwise", "view") and joined.get(reader) is not anchor:
                return False
            seen.add(reader)
            stack.append(reader)
    return True
