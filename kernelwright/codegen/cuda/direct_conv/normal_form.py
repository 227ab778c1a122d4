"""The normal form of contractions that run directly: at least one axis, and no more axes than are needed.

Where windows of positions are pooled a cell is a window: along each axis that windows extend along, the positions of
one are the output phases of one cell. Positions behind the last whole window are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap, in_groups
from kernelwright.plan.expressions import Expression, Guard, Index, Load, replaced, walk
from kernelwright.plan.kernels import Reduction, Store


def normal_form(kernel: Contraction) -> Contraction:
    """An equal contraction: a matrix product's rows are an axis, and axes without a window are merged where they lie
    in memory as one."""
    kernel = replace(kernel, tiling=None)
    if not kernel.axes:
        kernel = _rows_as_axis(kernel)
    axis = len(kernel.axes) - 2 - len(kernel.pool_window) * bool(kernel.pools)
    while axis >= 0:
        kernel = _merged(kernel, axis) or kernel
        axis -= 1
    kernel = _without_still_axes(kernel)
    return _in_windows(kernel) if kernel.pools else kernel


def _in_windows(kernel: Contraction) -> Contraction:
    """The kernel with as many output phases along the axes that windows extend along as they have positions."""
    axes = list(kernel.axes)
    for number, size in enumerate(kernel.pool_window, len(axes) - len(kernel.pool_window)):
        axis = in_groups(axes[number], size // axes[number].out_stride)
        axes[number] = replace(axis, out_size=axis.out_size // size * size)
    return replace(kernel, axes=tuple(axes))


def _pointwise(size: int) -> ContractionAxis:
    return ContractionAxis(size, size, 1, 1, 1, (Tap(0, 0, 0),))


def _indexed(kernel: Contraction, left: Callable[[tuple[int, ...]], tuple[int, ...]],
             right: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Contraction:
    """The kernel with the strides of its indices changed: of the left operand and the stores, of the right."""

    def changed(expression: Expression, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Expression:
        def index(old: Index) -> Index:
            return Index(change(old.strides), old.offset)

        def load(node: Expression) -> Expression | None:
            if not isinstance(node, Load):
                return None
            return replace(node, index=index(node.index),
                           guards=tuple(Guard(index(g.index), g.size) for g in node.guards))

        return replaced(expression, load)

    stores = tuple(Store(s.buffer, Index(left(s.index.strides), s.index.offset), changed(s.expression, left))
                   for s in kernel.stores)

    def moved(reductions: tuple[Reduction, ...]) -> tuple[Reduction, ...]:
        return tuple(replace(r, expression=changed(r.expression, left)) for r in reductions)

    return replace(kernel, left=changed(kernel.left, left), right=changed(kernel.right, right), stores=stores,
                   reductions=moved(kernel.reductions), pools=moved(kernel.pools))


def _rows_as_axis(kernel: Contraction) -> Contraction:
    changed = _indexed(kernel, lambda s: (0, s[1], s[2], s[0]), lambda s: (*s, 0))
    return replace(changed, batch=1, axes=(_pointwise(kernel.batch),))


def _without_still_axes(kernel: Contraction) -> Contraction:
    """The kernel whose indices do not name axes of size 1."""

    def moving(domain: tuple[int, ...]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
        return lambda strides: tuple(s if size > 1 else 0 for s, size in zip(strides, domain, strict=True))

    sums = _indexed(kernel, moving(kernel.domain), moving(kernel.right_domain))
    operands = _indexed(kernel, moving(kernel.left_domain), moving(kernel.right_domain))
    return replace(operands, stores=sums.stores, reductions=sums.reductions, pools=sums.pools)


def _merged(kernel: Contraction, axis: int) -> Contraction | None:
    """The kernel with an axis and the next as one, or None where they are not alike."""
    first, second = kernel.axes[axis:axis + 2]
    if first != _pointwise(first.in_size) or second != _pointwise(second.in_size):
        return None
    at, size = 3 + axis, second.in_size
    indices = [s.index for s in kernel.stores]
    for root in (kernel.left, *(s.expression for s in kernel.stores), *(r.expression for r in kernel.all_reductions)):
        for node in walk(root):
            if isinstance(node, Load):
                indices += [node.index, *(g.index for g in node.guards)]
    if any(i.strides[at] != i.strides[at + 1] * size for i in indices):
        return None
    changed = _indexed(kernel, lambda s: (*s[:at], *s[at + 1:]), lambda s: (*s[:at], *s[at + 1:]))
    axes = (*kernel.axes[:axis], _pointwise(first.in_size * size), *kernel.axes[axis + 2:])
    return replace(changed, axes=axes)
