"""Reductions over the positions of a convolution's output: of whole planes, and of windows of the last axis.

They are told by their axes. Pointwise operators and reshapes leave a tensor's elements in the order in which the
contraction gives them, so the positions are the last of a value's axes whose product is their number; where axes were
permuted they are followed one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from math import prod

from kernelwright.algebra.collapse import cast
from kernelwright.algebra.identities import axis_groups
from kernelwright.ir.node import Node
from kernelwright.ir.ops.windows import are_inside
from kernelwright.ir.recursion import Task, run
from kernelwright.plan.bits import Bits, union
from kernelwright.plan.reading.pieces import COPIES

#: Reductions that a kernel takes over all positions.
POSITION_REDUCTIONS = ("sum", "mean", "amax", "amin", "var")
#: Reductions that a kernel takes over windows of the last axis, the sizes of these, and lines of such a window.
POOLS, POOL_SIZES, POOL_LINES = ("sum", "amax", "amin"), (2, 4, 8), 2


class Elements:
    """Whose elements nodes have: of some contractions, those of which a node is made one element of one.

    Found once, along the order: a residual stream is made of all contractions before it.
    """

    def __init__(self, order: Iterable[Node], roles: Mapping[Node, str], anchors: Iterable[Node]) -> None:
        self._roles = roles
        self.anchors = Bits(anchors)
        self._in_order: dict[Node, int] = {}  # in the order that the contraction's have in memory
        self._moved: dict[Node, int] = {}  # in that or another order
        self._axes: dict[tuple[Node, Node], frozenset[int] | None] = {}
        self._alike: dict[Hashable, int] = {}
        for anchor, bit in self.anchors.of.items():
            form = (anchor.op, anchor.shape, anchor.get("transposed"), anchor.get("stride"))
            self._alike[form] = self._alike.get(form, 0) | bit
        for node in order if self.anchors.every else ():
            same = () if node.op in COPIES or roles[node] not in ("pointwise", "view") else \
                [i for i in node.inputs if i.size == node.size]
            own = self.anchors.of.get(node, 0)
            self._moved[node] = own | union(self._moved, same)
            reads = node.op == "reshape" or roles[node] == "pointwise"
            self._in_order[node] = own | (union(self._in_order, same) if reads else 0)

    def has(self, x: Node, anchor: Node) -> bool:
        """Whether ``x`` is made of an anchor's elements one by one, in the order that they have in memory."""
        return bool(self._in_order[x] & self.anchors.of[anchor])

    def of(self, x: Node, among: int | None = None) -> Iterator[Node]:
        """The anchors of which ``x`` has the elements in that order, one of each form: those of one have equal
        positions and phases. among: a set of anchors (all)."""
        found = self._in_order[x] & (self.anchors.every if among is None else among) if self.anchors.every else 0
        for alike in self._alike.values() if found else ():
            yield from islice(self.anchors.members(found & alike), 1)

    def axes_of_positions(self, x: Node, anchor: Node) -> frozenset[int] | None:
        """The axes of ``x`` that are all of the anchor's positions and nothing else; None where there are none such."""
        return run(self._axes_of_positions(x, anchor))

    def _axes_of_positions(self, x: Node, anchor: Node) -> Task[frozenset[int] | None]:
        if x is anchor:
            return frozenset(range(2, x.rank))
        if (x, anchor) not in self._axes:
            self._axes[x, anchor] = None
            for operand in x.inputs if self._moved[x] & self.anchors.of[anchor] else ():
                below = (yield self._axes_of_positions(operand, anchor)) if operand.size == x.size else None
                if below is not None:
                    self._axes[x, anchor] = _moved(x, operand, below)
                    break
        return self._axes[x, anchor]


def positions_of(anchor: Node) -> int:
    """Output positions of an anchor, for each entry of the batch and each channel."""
    return prod(anchor.shape[2:]) if anchor.op == "convolution" else 1


def first_position(shape: tuple[int, ...], count: int) -> int | None:
    """The axis from which on a shape has ``count`` elements; None where that is within an axis."""
    axis = len(shape)
    while count > 1 and axis and count % shape[axis - 1] == 0:
        axis -= 1
        count //= shape[axis]
    return axis if count == 1 else None


def reduces_positions(node: Node, anchor: Node, elements: Elements) -> bool:
    """Whether a reduction is over all positions of a convolution's output, for each entry of the batch and channel."""
    x, count = node.inputs[0], positions_of(anchor)
    if node.op not in POSITION_REDUCTIONS or count == 1 or x.size != anchor.size:
        return False
    first = first_position(x.shape, count)
    if first is not None and elements.has(x, anchor):
        return _wide(x, node["axes"]) == _wide(x, range(first, x.rank))
    axes = elements.axes_of_positions(x, anchor)
    return axes is not None and _wide(x, node["axes"]) == _wide(x, sorted(axes))


def _moved(node: Node, operand: Node, axes: frozenset[int]) -> frozenset[int] | None:
    """Where a node has the elements that its operand has along ``axes``."""
    if node.op == "permute":
        return frozenset(axis for axis, source in enumerate(node["axes"]) if source in axes)
    if node.op != "reshape":
        return frozenset(axis + node.rank - operand.rank for axis in axes) if node.kind != "view" else None
    result: set[int] = set()
    for left, right in axis_groups(operand.shape, node.shape) or ():
        wide = _wide(operand, left)
        if axes.issuperset(wide):
            result.update(right)
        elif not axes.isdisjoint(wide):
            return None
    return frozenset(result)


def _wide(x: Node, axes: Iterable[int]) -> list[int]:
    return [a for a in axes if x.shape[a] != 1]


def is_pool(node: Node, anchor: Node, elements: Elements) -> bool:
    """Whether a reduction is over windows of the last axis of a convolution's output, or of two lines of it, as a
    kernel takes them.

    A transposed convolution's output has phases: a kernel has neighbours along the last axis of at most two, and lines
    and planes of two or of one.
    """
    windows = windows_below(node)
    if windows is None or node.op not in POOLS or node["keepdim"]:
        return False
    kernel, axes = windows["kernel"], tuple(range(windows.rank - len(windows["kernel"]), windows.rank))
    plain = kernel[-1] in POOL_SIZES and kernel == windows["stride"] and node["axes"] == axes and \
        are_inside(windows) and all(d == 1 for d in windows["dilation"])
    possible = {(): can_pool, (POOL_LINES,): can_pool_lines, (POOL_LINES, POOL_LINES): can_pool_planes}
    return plain and kernel[:-1] in possible and possible[kernel[:-1]](windows.inputs[0], anchor, elements)


def can_pool(x: Node, anchor: Node, elements: Elements) -> bool:
    """Whether ``x`` has the elements of a convolution, of which a kernel can pool neighbours along the last axis."""
    return has_elements(x, anchor, elements) and (not anchor["transposed"] or anchor["stride"][-1] <= 2)


def can_pool_lines(x: Node, anchor: Node, elements: Elements) -> bool:
    """The same of windows of two lines, which a kernel has as two output phases: so there are no others, or these two,
    where a thread has all phases of its positions (multiply-adds in float32)."""
    return has_elements(x, anchor, elements) and anchor.rank > 3 and (
        not anchor["transposed"] or all(s == 1 for s in anchor["stride"][-2:]) or _has_pairs(anchor, 2))


def can_pool_planes(x: Node, anchor: Node, elements: Elements) -> bool:
    """The same of windows of two planes, of two lines each: of output phases that a thread has all of."""
    return has_elements(x, anchor, elements) and anchor.rank > 4 and anchor["transposed"] and _has_pairs(anchor, 3)


def _has_pairs(anchor: Node, axes: int) -> bool:
    """Whether the last axes of a transposed convolution's output have two phases each, the last one at most."""
    *before, last = anchor["stride"][-axes:]
    return all(s == 2 for s in before) and last <= 2


def has_elements(x: Node, anchor: Node, elements: Elements) -> bool:
    """Whether ``x`` is made of a convolution's output point by point, in its shape."""
    return anchor.op == "convolution" and x.shape == anchor.shape and elements.has(x, anchor)


def windows_below(node: Node) -> Node | None:
    """The view of windows that a reduction is of, maybe converted to another type."""
    x = node.inputs[0]
    x = x.inputs[0] if x.op == "cast" else x
    return x if x.op == "windows" else None


def pooled(node: Node) -> Node:
    """The value whose windows a reduction is of, in the type that is reduced."""
    windows = windows_below(node)
    assert windows is not None, node
    return cast(windows.inputs[0], node.inputs[0].dtype)
