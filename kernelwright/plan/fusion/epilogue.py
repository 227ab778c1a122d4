"""Which results a contraction stores in place of its sums.

What follows a contraction costs nothing in its epilogue, where every element is at hand once. Computed where it is
read instead, it costs its operations for each reader, and twice where an operand is packed. So a chain of pointwise
operators on a contraction's sums is stored at its end, if nobody needs the sums by themselves.

Reductions over all output channels of a position belong to the chain: a tile that is as wide as that has the whole row
of them. Each saves a pass over the sums and, where nobody else reads these, their way to memory and back. It costs
walks of the epilogue through shared memory, and up to 128 channels no more than that, as tiles that multiply fast are
as wide; up to `MOST_REDUCED` a tile has fewer rows, so that tuning measures both.

Reductions over all positions and over windows of the last axis (pools) join as well, and save the same. No tile has all
positions: what needs a total together with the sums, as a norm does, reads again what the chain stored at its end.
Pools join where nothing else is left of the sums. A kernel has one of the three: channels before reductions over
positions before pools.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from kernelwright.ir.node import Node
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.bits import Bits, union
from kernelwright.plan.contraction.positions import Elements, is_pool, reduces_positions, windows_below
from kernelwright.plan.contraction.products import MOST_REDUCED, TYPES, channels_of
from kernelwright.plan.records import KernelConfig


class Below:
    """The contractions that each node is or depends on.

    positions: reductions, each with a contraction that they take along: what depends on it through them alone does not
    count as depending on it.
    """

    def __init__(self, order: Iterable[Node], anchors: Bits, positions: Mapping[Node, Node] | None = None) -> None:
        self.anchors = anchors
        self.of: dict[Node, int] = {}
        for node in order if anchors.every else ():
            self.of[node] = anchors.of.get(node, 0) | union(self.of, node.inputs)
            if positions and node in positions:
                self.of[node] &= ~anchors.of[positions[node]]


class Reached:
    """The contractions whose kernels may compute nodes from their sums, and from reductions that joined them.

    Those are the ones that an evaluation reads while nothing else that it reads depends on them. Both are known of a
    node from what is known of its operands, so each is looked at once: an evaluation of a residual stream reads all
    contractions before it, of which it may join the last.
    """

    def __init__(self, roles: Mapping[Node, str], below: Below) -> None:
        self._roles, self._below = roles, below
        self._read: dict[Node, int] = {}
        self._needed: dict[Node, int] = {}  # contractions that something else which is read depends on

    def place(self, node: Node, joins: Node | None = None) -> None:
        """Add a node, operands first. joins: the contraction that it joins, if it is a reduction that does."""
        own, below = self._below.anchors.of.get(node, 0), self._below.of[node]
        if self._roles[node] in ("pointwise", "view"):
            self._read[node], self._needed[node] = union(self._read, node.inputs), union(self._needed, node.inputs)
        elif joins is None:
            self._read[node], self._needed[node] = own, below & ~own
        else:
            bit = self._below.anchors.of[joins]
            self._read[node] = union(self._read, node.inputs) & bit
            self._needed[node] = (below & ~bit) | (union(self._needed, node.inputs) & bit)

    def by(self, *nodes: Node) -> int:
        """The contractions whose kernels may compute something point by point of these nodes."""
        return union(self._read, nodes) & ~union(self._needed, nodes)


@dataclass(frozen=True, slots=True)
class Joined:
    """The reductions that may join a contraction, and which one: over all its output channels, over all its positions,
    over windows of its last axis.

    beyond: for every node, the contractions of which it needs reductions over positions. reached: those whose kernels
    may compute it, with reductions over channels that joined them.
    """

    channels: dict[Node, Node]
    positions: dict[Node, Node]
    pools: dict[Node, Node]
    anchors: Bits
    beyond: dict[Node, int]
    reached: Reached

    def anchor(self, node: Node) -> Node | None:
        """The contraction that a reduction may join."""
        return self.channels.get(node) or self.positions.get(node) or self.pools.get(node)

    def over(self, node: Node) -> str:
        """What a reduction that may join is over: channels, positions or windows."""
        return "channels" if node in self.channels else "positions" if node in self.positions else "windows"

    def is_beyond(self, node: Node, anchor: Node) -> bool:
        """Whether a node needs reductions over positions of ``anchor``, if that is a contraction."""
        return bool(self.beyond.get(node, 0) & self.anchors.of.get(anchor, 0))


def joining(order: list[Node], roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], roots: Collection[Node],
            products: Mapping[Node, KernelConfig], apart: Collection[Node]) -> Joined:
    """The reductions that may join contractions, as far as sizes tell.

    order: nodes, operands first. apart: nodes that have turned out to join nothing.
    """
    anchors = Bits(n for n in order if n in products)
    below = Below(order, anchors)
    joined = Joined({}, {}, {}, anchors, {}, Reached(roles, below))
    if not any(products[n].reduces for n in anchors.of):
        for node in order if anchors.every else ():
            joined.reached.place(node)
        return joined
    elements = Elements(order, roles, anchors.of)
    sums = Reached(roles, below)
    for node in order:
        if roles[node] == "reduction" and node not in apart and node.dtype in TYPES:
            _join_channels(node, joined, products, elements)
        joined.reached.place(node, joined.channels.get(node))
        sums.place(node)
    reductions = [n for n in order if roles[n] == "reduction" and n not in apart and n.dtype in TYPES]
    taken = set(joined.channels.values())
    free = anchors.some(n for n in anchors.of if products[n].reduces and n not in taken)
    joined.positions.update(_positions(reductions, free, sums, elements, anchors))
    free &= ~anchors.some(joined.positions.values())
    joined.pools.update(_pools(reductions, roles, readers, roots, free, sums, elements, anchors))
    for node in order if joined.positions else ():
        own = anchors.of[joined.positions[node]] if node in joined.positions else 0
        joined.beyond[node] = own | union(joined.beyond, node.inputs)
    return joined


def _join_channels(node: Node, joined: Joined, products: Mapping[Node, KernelConfig], elements: Elements) -> None:
    """Let a reduction join the contraction whose output channels it is over, if it is over some."""
    operand = node.inputs[0]
    count = prod(operand.shape[axis] for axis in node["axes"])
    for anchor in joined.anchors.members(joined.reached.by(operand)) if 1 < count <= MOST_REDUCED else ():
        if products[anchor].reduces and anchor.size == operand.size and channels_of(anchor) == count and not (
                reduces_positions(node, anchor, elements) or is_pool(node, anchor, elements)):
            joined.channels[node] = anchor
            return


def _positions(reductions: Iterable[Node], free: int, sums: Reached, elements: Elements, anchors: Bits
               ) -> dict[Node, Node]:
    """Of several contractions that a value is made of, the last one can have it. free: those to join."""
    result: dict[Node, Node] = {}
    for node in reductions:
        found = [a for a in anchors.members(sums.by(*node.inputs) & free) if reduces_positions(node, a, elements)]
        if found:
            result[node] = found[-1]
    return result


def _pools(reductions: Iterable[Node], roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
           roots: Collection[Node], free: int, sums: Reached, elements: Elements, anchors: Bits) -> dict[Node, Node]:
    """Pools of which a contraction has some of one size, and nobody else reads anything of its sums."""
    found: dict[Node, dict[Node, Node]] = {}
    for node in reductions if free else ():
        some = [a for a in anchors.members(sums.by(*node.inputs) & free) if is_pool(node, a, elements)]
        windows = windows_below(node)
        if some and windows is not None:
            found.setdefault(some[-1], {})[node] = windows
    return {node: anchor for anchor, pools in found.items() for node in pools
            if len({w["kernel"] for w in pools.values()}) == 1
            and _all_uses_pass(anchor, list(pools), roles, readers, roots, joined=None)}


def ends_sums(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], roots: Collection[Node],
              joined: Joined) -> bool:
    """Whether a pointwise result is the end of such a chain."""
    return any(anchor.size == node.size and ITEM_BYTES[node.dtype] <= ITEM_BYTES[anchor.dtype]
               and _has_other_readers(node, anchor, roles, readers, joined)
               and _all_uses_pass(anchor, [node], roles, readers, roots, joined)
               for anchor in joined.anchors.members(joined.reached.by(*node.inputs)))


def _has_other_readers(node: Node, anchor: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                       joined: Joined) -> bool:
    """Whether something reads the result that is no part of the chain, through views or not."""
    return any(_has_other_readers(r, anchor, roles, readers, joined) if roles[r] == "view" else
               roles[r] != "pointwise" and joined.anchor(r) is None for r in readers[node]) or \
        _is_read_again(node, anchor, roles, readers, joined)


def _is_read_again(node: Node, anchor: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                   joined: Joined) -> bool:
    """Whether something reads the result together with reductions over positions of it, through views or in a wider
    type or not."""
    return any(joined.is_beyond(r, anchor) if roles[r] == "pointwise" and not _widens(r) else
               (roles[r] == "view" or _widens(r)) and _is_read_again(r, anchor, roles, readers, joined)
               for r in readers[node])


def _widens(node: Node) -> bool:
    return node.op == "cast" and ITEM_BYTES[node.dtype] > ITEM_BYTES[node.inputs[0].dtype]


def _all_uses_pass(anchor: Node, ends: Collection[Node], roles: Mapping[Node, str],
                   readers: Mapping[Node, list[Node]], roots: Collection[Node], joined: Joined | None) -> bool:
    """Whether whatever reads the anchor does so through ``ends`` alone, or is one of its reductions over positions.
    joined: reductions of which those over channels belong to the chain; None where none do."""
    channels, positions = (joined.channels, joined.positions) if joined is not None else ({}, {})
    stack, seen = [anchor], {anchor}
    while stack:
        current = stack.pop()
        if current in roots:
            return False
        for reader in readers[current]:
            if reader in ends or positions.get(reader) is anchor or reader in seen:
                continue
            if roles[reader] not in ("pointwise", "view") and channels.get(reader) is not anchor:
                return False
            seen.add(reader)
            stack.append(reader)
    return True
