"""Pools of few elements, computed by the reduction that reads them.

A pool is a reduction over a view of windows, and a kernel's reductions share their axes, so whatever reduces the pool's
results reads them from memory. Where windows are small and do not overlap their elements may as well be operands of
pointwise operators, which are computed wherever they are read::

    max over windows of (1, 2)   becomes   maximum(x[..., 0::2], x[..., 1::2])

Every element is read once either way; the results are neither written nor read. That needs one reader: what several
read (a norm's statistics and its results, say) would be computed as often. Where windows are of one element along the
last axis pools are pointwise in any case, and stored where several read them: threads read neighbours together then,
of which a reduction over windows reads one at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce as fold
from itertools import product
from math import prod

from kernelwright.algebra.build import MOMENTS, plus_zero, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make, rebuild, users, walk
from kernelwright.ir.ops.windows import are_inside
from kernelwright.plan.contraction.positions import POOLS, windows_below

#: Elements of a window at most: as many loads of each thread are on their way together.
_MOST_ELEMENTS = 8
_POINTWISE = {"sum": "add", "amax": "maximum", "amin": "minimum"}


def inlined(roots: Iterable[Node], roles: Mapping[Node, str], joined: Collection[Node]
            ) -> tuple[dict[Node, Node], set[Node]]:
    """For every node below ``roots`` the one of its value in a graph in which small pools are pointwise that one
    reduction alone reads, or that are of lines; and those of them to store, because several read them.

    roles: what each node becomes (:func:`kernelwright.plan.roles.roles_of`). joined: reductions to leave as they are,
    because a contraction takes them.
    """
    roots = list(roots)
    readers, demanded = users(roots), set(roots)
    moved: dict[Node, Node] = {}
    ends: list[Node] = []
    for node in walk(roots):
        inputs = tuple(moved[i] for i in node.inputs)
        small = node not in joined and is_small_pool(node, roles)
        inside = small and _is_reduced(node, roles, readers, demanded)
        if inside or (small and _is_of_lines(node, roles, readers)):
            moved[node] = _pointwise(node, inputs[0])
            ends += [] if inside else [_end(node, roles, readers, demanded)]
        elif node.op == "reshape":
            moved[node] = reshape(inputs[0], node.shape) if inputs != node.inputs else node
        else:
            moved[node] = rebuild(node, inputs)
    return moved, {_computed(moved[node]) for node in ends}


def is_small_pool(node: Node, roles: Mapping[Node, str]) -> bool:
    """Whether a node reduces windows of few elements, which neither overlap nor reach beyond what they are of."""
    if roles[node] != "reduction" or node.op not in POOLS:
        return False
    windows = windows_below(node)
    if windows is None or not are_inside(windows) or prod(windows["kernel"]) > _MOST_ELEMENTS:
        return False
    rank = len(windows["kernel"])
    apart = all(stride > dilation * (size - 1) for size, stride, dilation in
                zip(windows["kernel"], windows["stride"], windows["dilation"], strict=True))
    return apart and node["axes"] == tuple(range(windows.rank - rank, windows.rank))


def _is_reduced(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], demanded: Collection[Node]
                ) -> bool:
    """Whether one reduction reads a node, through pointwise operators and views, and nobody else anything of it, nor
    more than once."""
    while len(readers[node]) == 1 and node not in demanded:
        size, (node,) = node.size, readers[node]
        if roles[node] == "reduction":
            # A variance may be read twice, and of windows neighbouring threads read no neighbours.
            return node.op not in MOMENTS and windows_below(node) is None
        if roles[node] not in ("pointwise", "view") or node.size > size:
            return False
    return False


def _is_of_lines(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]]) -> bool:
    """Whether windows have one element along the last axis, so that neighbours of the results are made of neighbours,
    and what is computed from the results point by point is neither for windows nor for more points."""
    windows = windows_below(node)
    if windows is None or windows["kernel"][-1] != 1 or windows["stride"][-1] != 1:
        return False
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        for reader in readers[current]:
            if reader.op == "windows" or roles[reader] == "contraction":
                return False
            if roles[reader] in ("pointwise", "view") and reader.size > current.size:
                return False
            if roles[reader] in ("pointwise", "view") and reader not in seen:
                seen.add(reader)
                stack.append(reader)
    return True


def _end(node: Node, roles: Mapping[Node, str], readers: Mapping[Node, list[Node]], demanded: Collection[Node]) -> Node:
    """The last of the pointwise operators and views that one after the other read a node alone."""
    while len(readers[node]) == 1 and node not in demanded and roles[readers[node][0]] in ("pointwise", "view"):
        (node,) = readers[node]
    return node


def _computed(value: Node) -> Node:
    """The operator that computes a value, below views."""
    while value.kind == "view":
        value = value.inputs[0]
    return value


def _pointwise(node: Node, x: Node) -> Node:
    """The pool ``node`` of windows ``x`` (maybe converted), element by element."""
    windows = x.inputs[0] if x.op == "cast" else x
    below, kernel = windows.inputs[0], windows["kernel"]
    parts = [cast(_element(below, windows, places), x.dtype) for places in product(*map(range, kernel))]
    # The later one first: of equal zeros an extremum is its second operand, and a pool has the first of its window.
    result = fold(lambda one, two: make(_POINTWISE[node.op], two, one, origin=node.origin), parts)
    return reshape(plus_zero(result) if node.op == "sum" else result, node.shape)


def _element(below: Node, windows: Node, places: tuple[int, ...]) -> Node:
    """The element at ``places`` of every window."""
    first = below.rank - len(places)
    for axis, place in enumerate(places):
        start, step, count = place * windows["dilation"][axis], windows["stride"][axis], windows["size"][axis]
        stop = start + step * (count - 1) + 1
        if (start, stop, step) != (0, below.shape[first + axis], 1):
            below = make("slice", below, axis=first + axis, start=start, stop=stop, step=step)
    return below
