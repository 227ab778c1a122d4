"""Which results a contraction stores in place of its sums.

What follows a contraction costs nothing in its epilogue, where every element is at hand once. Computed where it is
read instead, it costs its operations for each reader, and twice where an operand is packed. So a chain of pointwise
operators on a contraction's sums is stored at its end, if nobody needs the sums by themselves.

Reductions over all output channels of a position belong to the chain: a tile that is as wide as that has the whole row
of them. Each saves a pass over the sums and, where nobody else reads these, their way to memory and back. It costs
walks of the epilogue through shared memory, and up to 128 channels no more than that, as tiles that multiply fast are
as wide; up to `MOST_REDUCED` a tile has fewer rows, so that tuning measures both.

Reductions over all positions (totals) and over windows of the last axis (pools) join as well, and save the same. No
tile has all positions: what needs a total together with the sums, as a norm does, reads again what the chain stored at
its end. Pools join where nothing else is left of the sums. A kernel has one of the three: channels before totals before
pools.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from kernelwright.ir.node import Node, number_of
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.positions import is_pool, is_total, windows_below
from kernelwright.plan.products import MOST_REDUCED, TYPES, channels_of
from kernelwright.plan.records import Choice


class Below:
    """The contractions that each node is or depends on, as bits: a set for each would take room and time with the
    square of their number."""

    def __init__(self, order: Iterable[Node], products: Iterable[Node]) -> None:
        self.bits = {product: 1 << number for number, product in enumerate(products)}
        self.of: dict[Node, int] = {}
        for node in order if self.bits else ():
            found = self.bits.get(node, 0)
            for operand in node.inputs:
                found |= self.of[operand]
            self.of[node] = found

    def has(self, node: Node, product: Node) -> bool:
        """Whether ``node`` is or depends on ``product``."""
        return bool(self.of[node] & self.bits[product])


@dataclass(frozen=True, slots=True)
class Joined:
    """The reductions that may join a contraction, and which one: over all its output channels, over all its positions,
    over windows of its last axis.

    beyond: for every node, the contractions of which it needs totals. below: those that it is or depends on.
    """

    channels: dict[Node, Node]
    totals: dict[Node, Node]
    pools: dict[Node, Node]
    beyond: dict[Node, frozenset[Node]]
    below: Below

    def anchor(self, node: Node) -> Node | None:
        """The contraction that a reduction may join."""
        return self.channels.get(node) or self.totals.get(node) or self.pools.get(node)

    def over(self, node: Node) -> str:
        """What a reduction that may join is over: channels, positions or windows."""
        return "channels" if node in self.channels else "positions" if node in self.totals else "windows"


def joining(order: list[Node], roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], roots: Collection[Node],
            products: Mapping[Node, Choice], apart: Collection[Node]) -> Joined:
    """The reductions that may join contractions, as far as sizes tell.

    order: nodes, operands first. apart: nodes that have turned out to join nothing.
    """
    below = Below(order, products)
    if not any(choice.reduces for choice in products.values()):
        return Joined({}, {}, {}, {}, below)
    reductions = [n for n in order if roles[n] == "reduction" and n not in apart and n.dtype in TYPES]
    channels = _channel_reductions(reductions, roles, products, below)
    free = {n: place for place, n in enumerate(order) if n in products and products[n].reduces
            and n not in channels.values()}
    totals = _totals(reductions, roles, free, below)
    for anchor in totals.values():
        free.pop(anchor, None)
    pools = _pools(reductions, roles, readers, roots, free, below)
    beyond: dict[Node, frozenset[Node]] = {}
    for node in order if totals else ():
        own = [totals[node]] if node in totals else []
        beyond[node] = frozenset(own).union(*(beyond[i] for i in node.inputs))
    return Joined(channels, totals, pools, beyond, below)


def _channel_reductions(reductions: Iterable[Node], roles: Mapping[Node, str], products: Mapping[Node, Choice],
                        below: Below) -> dict[Node, Node]:
    result: dict[Node, Node] = {}
    for node in reductions:
        operand = node.inputs[0]
        count = prod(operand.shape[axis] for axis in node["axes"])
        for anchor in _anchors(node, roles, result, below) if 1 < count <= MOST_REDUCED else ():
            if products[anchor].reduces and anchor.size == operand.size and channels_of(anchor) == count and not (
                    is_total(node, anchor, roles) or is_pool(node, anchor, roles)):
                result[node] = anchor
    return result


def _totals(reductions: Iterable[Node], roles: Mapping[Node, str], free: Mapping[Node, int], below: Below
            ) -> dict[Node, Node]:
    """Of several contractions that a value is made of, the last one can have it. free: those to join, and when they
    run."""
    result: dict[Node, Node] = {}
    for node in reductions:
        found = [a for a in _anchors(node, roles, {}, below) if a in free and is_total(node, a, roles)]
        if found:
            result[node] = max(found, key=lambda anchor: free[anchor])
    return result


def _pools(reductions: Iterable[Node], roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
           roots: Collection[Node], free: Mapping[Node, int], below: Below) -> dict[Node, Node]:
    """Pools of which a contraction has some of one size, and nobody else reads anything of its sums."""
    found: dict[Node, dict[Node, Node]] = {}
    for node in reductions if free else ():
        anchors = [a for a in _anchors(node, roles, {}, below) if a in free and is_pool(node, a, roles)]
        if anchors:
            found.setdefault(max(anchors, key=lambda anchor: free[anchor]), {})[node] = windows_below(node)
    return {node: anchor for anchor, pools in found.items() for node in pools
            if len({w["kernel"] for w in pools.values()}) == 1
            and _all_uses_pass(anchor, list(pools), roles, readers, roots, {})}


def ends_sums(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], roots: Collection[Node],
              joined: Joined) -> bool:
    """Whether a pointwise result is the end of such a chain."""
    return any(anchor.size == node.size and ITEM_BYTES[node.dtype] <= ITEM_BYTES[anchor.dtype]
               and _has_other_readers(node, anchor, roles, readers, joined)
               and _all_uses_pass(anchor, [node], roles, readers, roots,
                                  {r for r, a in joined.channels.items() if a is anchor},
                                  {r for r, a in joined.totals.items() if a is anchor})
               for anchor in _anchors(node, roles, joined.channels, joined.below))


def _has_other_readers(node: Node, anchor: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                       joined: Joined) -> bool:
    """Whether something reads the result that is no part of the chain, through views or not."""
    return any(_has_other_readers(r, anchor, roles, readers, joined) if roles[r] == "view" else
               roles[r] != "pointwise" and joined.anchor(r) is None for r in readers[node]) or \
        _is_read_again(node, anchor, roles, readers, joined)


def _is_read_again(node: Node, anchor: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                   joined: Joined) -> bool:
    """Whether something reads the result together with totals of it, through views or in a wider type or not."""
    return any(anchor in joined.beyond.get(r, ()) if roles[r] == "pointwise" and not _widens(r) else
               (roles[r] == "view" or _widens(r)) and _is_read_again(r, anchor, roles, readers, joined)
               for r in readers[node])


def _widens(node: Node) -> bool:
    return node.op == "cast" and ITEM_BYTES[node.dtype] > ITEM_BYTES[node.inputs[0].dtype]


def _anchors(node: Node, roles: Mapping[Node, str], joined: Mapping[Node, Node], below: Below) -> Iterator[Node]:
    """The contractions whose kernel may compute the node from its sums, and from reductions that joined it.

    Nothing else that is read may need the sums.
    """
    for anchor in dict.fromkeys(joined.get(base, base) for base in _bases(node, roles, ())):
        if roles[anchor] == "contraction":
            bases = _bases(node, roles, {r for r, a in joined.items() if a is anchor})
            if anchor in bases and not any(below.has(other, anchor) for other in bases if other is not anchor):
                yield anchor


def _bases(node: Node, roles: Mapping[Node, str], through: Collection[Node]) -> list[Node]:
    """What an evaluation of the node reads from memory, if it computes the nodes in ``through`` by itself."""
    result: list[Node] = []
    seen: set[Node] = set()
    stack = list(node.inputs)
    while stack:
        current = stack.pop()
        if current in seen or number_of(current) is not None:
            continue
        seen.add(current)
        if roles[current] in ("pointwise", "view") or current in through:
            stack += current.inputs
        else:
            result.append(current)
    return result


def _all_uses_pass(anchor: Node, ends: Collection[Node], roles: Mapping[Node, str],
                   readers: Mapping[Node, list[Node]], roots: Collection[Node], through: Collection[Node],
                   totals: Collection[Node] = ()) -> bool:
    """Whether whatever reads the anchor does so through ``ends`` alone, or is one of its ``totals``. through:
    reductions that belong to the chain."""
    stack, seen = [anchor], {anchor}
    while stack:
        current = stack.pop()
        if current in roots:
            return False
        for reader in readers[current]:
            if reader in ends or reader in totals or reader in seen:
                continue
            if roles[reader] not in ("pointwise", "view") and reader not in through:
                return False
            seen.add(reader)
            stack.append(reader)
    return True
