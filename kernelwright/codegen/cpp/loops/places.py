"""Places of elements that indices choose, in 32 bits where that is known to hold them.

g++ takes the elements of a vector together (a gather) where their places are known to be 32 bits wide; where they are
64, it does not vectorise the loop. Elements that lie side by side along a vector, as those of chosen rows, it reads as
they lie, where nothing is said of their places.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, isinf

from kernelwright.plan.expressions import Apply, Element, Expression, Load, Whole, is_whole, replaced, walk
from kernelwright.plan.kernels import LoopKernel, Reduction, Store

Range = tuple[float, float]
_ANY: Range = (-inf, inf)


def near_places(kernel: LoopKernel) -> LoopKernel:
    """The equal kernel in which places of elements say that 32 bits hold them, where the kernel's sizes and the bounds
    of its indices show it."""
    sizes = kernel.outer + kernel.row
    indices = [s.index for s in kernel.row_stores + kernel.outer_stores]
    lanes = {axis for index in indices for axis, stride in enumerate(index.strides) if abs(stride) == 1}
    lanes |= {len(sizes) - 1} if kernel.row else set()  # axes along which vectors may be
    memo: dict[Expression, Expression] = {}

    def near(node: Expression) -> Expression | None:
        if not isinstance(node, Element):
            return None
        (place,) = node.arguments
        low, high = _range(place, sizes)
        chosen = [n for n in walk(place) if isinstance(n, Load) and not n.counts]
        apart = all(any(n.axes >> axis & 1 for n in chosen) for axis in lanes)
        inner = replaced(place, near, memo)
        return node.of((Apply("wrap_int32", (inner,)) if apart and low >= -(2**31) and high < 2**31 else inner,))

    def stores(old: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(Store(s.buffer, s.index, replaced(s.expression, near, memo)) for s in old)

    return replace(
        kernel, row_stores=stores(kernel.row_stores), outer_stores=stores(kernel.outer_stores),
        reductions=tuple(Reduction(r.kind, replaced(r.expression, near, memo)) for r in kernel.reductions))


def _range(place: Expression, sizes: tuple[int, ...]) -> Range:
    """Bounds of a whole number."""
    found: dict[Expression, Range] = {}
    for node in walk(place, into=lambda n: is_whole(n) and not isinstance(n, Element)):
        found[node] = _own_range(node, [found[a] for a in node.arguments]) if isinstance(node, Apply) and all(
            a in found for a in node.arguments) else _leaf_range(node, sizes)
    return found[place]


def _leaf_range(node: Expression, sizes: tuple[int, ...]) -> Range:
    if isinstance(node, Whole):
        return node.value, node.value
    if isinstance(node, Load) and node.counts:
        reach = [stride * (size - 1) for stride, size in zip(node.index.strides, sizes, strict=True)]
        low, high = (node.index.offset + sum(f(0, r) for r in reach) for f in (min, max))
        other = [int(node.otherwise)] if node.guards else []
        return min([low, *other]), max([high, *other])
    return _ANY


def _own_range(node: Apply, of: list[Range]) -> Range:
    """Bounds of a function's value from those of its arguments."""
    match node.function, of:
        case "whole_add", [a, b]:
            return a[0] + b[0], a[1] + b[1]
        case "whole_mul", [a, b] if not any(map(isinf, (*a, *b))):
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case ("whole_maximum" | "whole_clamp_min"), [a, b]:
            return max(a[0], b[0]), max(a[1], b[1])
        case ("whole_minimum" | "whole_clamp_max"), [a, b]:
            return min(a[0], b[0]), min(a[1], b[1])
        case "whole_where", [_, a, b]:
            return min(a[0], b[0]), max(a[1], b[1])
    return _ANY
