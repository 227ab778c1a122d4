"""Which results on the way kernels round as PyTorch does, wherever they compute them.

A kernel keeps what it fuses in float32 where PyTorch rounds each operator's result to 16 bits. An extremum is one of
the values that it is taken of, and models ask for just that: v - v.max() is zero somewhere, v == F.max_pool2d(v, 3, 1,
1) tells the peaks, sqrt(v.max() - v) is a number. An extremum that is stored is rounded, and v computed again beside it
must be as well, in all its operators: else it is not among them. Places of extrema are the first among equals, which
roundings make, too. So it is with whatever a jump (``JUMPS``) sees of a reduction: a mean of equals is each of them.
A jump has its own operands rounded where it is computed, but not those that another kernel has stored for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelwright.algebra.build import NARROW, REDUCTIONS
from kernelwright.ir.node import Node
from kernelwright.ir.scalar import INTEGERS, JUMPS

#: These give one of their operands, or one of another sign: there is nothing to round.
_CHOOSING = ("neg", "abs", "relu", "maximum", "minimum", "where")
_EXTREMA, _PLACES = ("amax", "amin"), ("argmax", "argmin")


def settled(order: Sequence[Node], roles: Mapping[Node, str], readers: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """The 16-bit pointwise results of a lowered graph to round as PyTorch does in all their operators.

    order: its nodes, inputs before users. roles: what each becomes. readers: who reads it.
    """
    if not any(n.dtype in NARROW for n in order):
        return set()
    seen = _seen_by_jumps(order, roles)
    result = {n for n in seen if roles[n] == "pointwise" and _rounds(n, roles)}
    for node in order:
        if node.op not in _EXTREMA and node.op not in _PLACES and (node.op not in REDUCTIONS or node not in seen):
            continue
        for value in _values(node.inputs[0], roles):
            if value in result or not _rounds(value, roles):
                continue
            if node.op in _PLACES or node in seen or any(r is not node for r in _others(value, roles, readers)):
                result.add(value)
    return result


def is_jump(node: Node) -> bool:
    """Whether a rounding of its operands decides a whole step of an operator."""
    return node.op in JUMPS or (node.op == "cast" and node.dtype in (*INTEGERS, "bool"))


def _seen_by_jumps(order: Sequence[Node], roles: Mapping[Node, str]) -> set[Node]:
    """What decides jumps: their operands, and all that these are computed from on the fly or by reductions."""
    seen: set[Node] = set()
    for node in reversed(order):
        if is_jump(node) or (node in seen and roles[node] in ("pointwise", "view", "reduction", "place")):
            seen.update(node.inputs)
    return seen


def _values(node: Node, roles: Mapping[Node, str]) -> set[Node]:
    """The pointwise results that an operand shows, itself or through views and copies."""
    found, known, stack = set(), set(), [node]
    while stack:
        current = stack.pop()
        if current in known:
            continue
        known.add(current)
        if roles[current] == "view":
            stack += current.inputs
        elif roles[current] == "pointwise":
            found.add(current)
    return found


def _others(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """Who reads a value, itself or through views."""
    found, known, stack = set(), set(), [node]
    while stack:
        for reader in readers[stack.pop()]:
            if reader not in known:
                known.add(reader)
                if roles[reader] == "view":
                    stack.append(reader)
                else:
                    found.add(reader)
    return found


def _rounds(node: Node, roles: Mapping[Node, str]) -> bool:
    """Whether any operator that a 16-bit value is computed with on the fly rounds its result."""
    if node.dtype not in NARROW:
        return False
    known, stack = set(), [node]
    while stack:
        current = stack.pop()
        if current in known or roles[current] not in ("pointwise", "view"):
            continue
        known.add(current)
        if current.dtype in NARROW and roles[current] == "pointwise" and current.op not in (*_CHOOSING, "cast", "copy"):
            return True
        stack += current.inputs
    return False
