"""Which pointwise results a contraction stores in place of its sums.

What follows a contraction costs nothing in its epilogue, where every element is at hand once. Computed where it is
read instead, it costs its operations for each reader, and twice where an operand is packed. So a chain of pointwise
operators on a contraction's sums is stored at its end, if nobody needs the sums by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.ir.node import Node, walk
from kernelwright.ir.registry import ITEM_BYTES


def ends_sums(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], roots: list[Node]) -> bool:
    """Whether a pointwise result is the end of such a chain."""
    if not _has_other_readers(node, roles, readers):
        return False
    below = _bases(node, roles)
    for anchor in below:
        if roles[anchor] == "contraction" and anchor.size == node.size \
                and ITEM_BYTES[node.dtype] <= ITEM_BYTES[anchor.dtype] \
                and _all_uses_pass(anchor, node, roles, readers, roots):
            return not any(anchor in walk([other]) for other in below if other is not anchor)
    return False


def _has_other_readers(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]]) -> bool:
    """Whether something reads the result that is no pointwise operator, through views or not."""
    return any(_has_other_readers(r, roles, readers) if roles[r] == "view" else roles[r] != "pointwise"
               for r in readers[node])


def _bases(node: Node, roles: Mapping[Node, str]) -> list[Node]:
    """What an evaluation of the node reads from memory."""
    result: list[Node] = []
    seen: set[Node] = set()
    stack = list(node.inputs)
    while stack:
        current = stack.pop()
        if current in seen or current.op == "constant":
            continue
        seen.add(current)
        if roles[current] in ("pointwise", "view"):
            stack += current.inputs
        else:
            result.append(current)
    return result


def _all_uses_pass(anchor: Node, node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]],
                   roots: list[Node]) -> bool:
    """Whether whatever reads the anchor does so through ``node`` alone."""
    stack, seen = [anchor], {anchor}
    while stack:
        current = stack.pop()
        if current in roots:
            return False
        for reader in readers[current]:
            if reader is node or reader in seen:
                continue
            if roles[reader] not in ("pointwise", "view"):
                return False
            seen.add(reader)
            stack.append(reader)
    return True
