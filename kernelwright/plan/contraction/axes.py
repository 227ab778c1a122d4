"""Axes of a contraction: of convolutions, those without a window, and those that stand in parts while operands are
pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap
from kernelwright.plan.expressions import Expression, Index, Load, replaced, walk
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.reading.access import Affine, SplitAxis, strides_of


def unit_axis(size: int) -> ContractionAxis:
    """An axis without a window: every output position takes the input at its own place."""
    return ContractionAxis(size, size, 1, 1, 1, (Tap(0, 0, 0),))


def axis_of(transposed: bool, in_size: int, out_size: int, kernel: int, stride: int, padding: int, dilation: int
            ) -> ContractionAxis:
    """A convolution's spatial axis."""
    if not transposed:
        taps = tuple(Tap(k, 0, k * dilation - padding) for k in range(kernel))
        return ContractionAxis(in_size, out_size, kernel, stride, 1, taps)
    phases = [(k * dilation - padding) % stride for k in range(kernel)]
    taps = tuple(Tap(k, p, (p + padding - k * dilation) // stride) for k, p in enumerate(phases))
    return ContractionAxis(in_size, out_size, kernel, 1, stride, taps)


class FineDomain:
    """A domain of which a reshape on the way takes axes apart.

    Most such parts come together again in the memory that is read in the end: :meth:`whole` joins them.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self.parts = [[size] for size in sizes]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all parts in order."""
        return tuple(size for parts in self.parts for size in parts)

    def variable(self, axis: int) -> Affine:
        """The position along a whole axis, by the variables of its parts; nothing where it has one position."""
        first = sum(len(parts) for parts in self.parts[:axis])
        coefficients = [0] * len(self.sizes)
        for place, stride in enumerate(strides_of(tuple(self.parts[axis]))):
            coefficients[first + place] = stride if self.parts[axis][place] != 1 else 0
        return Affine(tuple(coefficients))

    def split(self, number: int, inner: int) -> None:
        """Take part ``number`` apart, into two of which the inner one has size ``inner``."""
        for parts in self.parts:
            if number < len(parts):
                parts[number:number + 1] = [parts[number] // inner, inner]
                return
            number -= len(parts)

    def whole(self, value: Expression, index: Index) -> tuple[Expression, Index]:
        """An expression and an index over the whole axes. Raises SplitAxis for an axis that has to stay in parts."""
        found = [index, *indices_of([value])]
        first = 0
        for axis, parts in enumerate(self.parts):
            for place in range(len(parts) - 1, 0, -1):
                at, step = first + place - 1, parts[place]
                if any(i.strides[at] != i.strides[at + 1] * step for i in found):
                    raise SplitAxis(axis, strides_of(tuple(parts))[place - 1])
            first += len(parts)

        def change(old: Index) -> Index:
            ends = [sum(len(p) for p in self.parts[:axis + 1]) - 1 for axis in range(len(self.parts))]
            return Index(tuple(old.strides[end] for end in ends), old.offset)

        return replaced(value, _moving(change)), change(index)


def indices_of(roots: Iterable[Expression]) -> list[Index]:
    """The indices of all loads and their guards."""
    loads = [node for root in roots for node in walk(root) if isinstance(node, Load)]
    return [i for load in loads for i in (load.index, *(g.index for g in load.guards))]


def joined(kernel: Contraction, split: int) -> Contraction:
    """The kernel with axes joined that have no window: rows that were split in vain, and neighbours in space.

    What is scaled by itself, a matrix's row or an entry of a convolution's batch, stays apart from space: ``split``
    counts the axes beside n that it was split into, which come first. Axes stay as they are along which windows are
    pooled.
    """
    count = len(kernel.axes)
    for axis in range(split, 0, -1):
        kernel = _joined(kernel, axis + 1 if axis > 1 else 0, axis + 2)
    first = split - (count - len(kernel.axes))
    for axis in range(len(kernel.axes) - 1 - len(kernel.pool_window) * bool(kernel.pools), first, -1):
        kernel = _joined(kernel, axis + 2, axis + 3)
    return replace(kernel, entry_axes=first)


def _joined(kernel: Contraction, outer: int, inner: int) -> Contraction:
    """The kernel with the domain's axis ``outer`` joined to ``inner``; the same where indices do not allow it."""
    windows = [kernel.axes[a - 3] for a in (outer, inner) if a >= 3]
    if not all(_has_no_window(axis) for axis in windows):
        return kernel
    sizes = kernel.domain
    found = [*(s.index for s in kernel.stores),
             *indices_of([kernel.left, *(part.expression for part in (*kernel.all_reductions, *kernel.stores))])]
    if sizes[outer] != 1 and sizes[inner] != 1 and any(
            i.strides[outer] != i.strides[inner] * sizes[inner] for i in found):
        return kernel
    total = sizes[outer] * sizes[inner]

    def change(index: Index) -> Index:
        stride = index.strides[inner] if sizes[inner] != 1 else index.strides[outer]
        strides = [stride if a == outer else s for a, s in enumerate(index.strides)]
        del strides[inner]
        return Index(tuple(strides), index.offset)

    def without(index: Index) -> Index:
        return Index((*index.strides[:inner], *index.strides[inner + 1:]), index.offset)

    axes = [a for n, a in enumerate(kernel.axes) if n != inner - 3]
    if outer >= 3:
        axes[outer - 3] = unit_axis(total)
    stores = tuple(Store(s.buffer, change(s.index), replaced(s.expression, _moving(change))) for s in kernel.stores)

    def moved(reductions: tuple[Reduction, ...]) -> tuple[Reduction, ...]:
        return tuple(replace(r, expression=replaced(r.expression, _moving(change))) for r in reductions)

    return replace(kernel, batch=total if outer == 0 else kernel.batch, axes=tuple(axes),
                   left=replaced(kernel.left, _moving(change)), right=replaced(kernel.right, _moving(without)),
                   stores=stores, reductions=moved(kernel.reductions),
                   position_reductions=moved(kernel.position_reductions),
                   pools=moved(kernel.pools))


def _has_no_window(axis: ContractionAxis) -> bool:
    return axis == unit_axis(axis.in_size)


def _moving(change: Callable[[Index], Index]) -> Callable[[Expression], Expression | None]:
    def moved(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        return replace(node, index=change(node.index),
                       guards=tuple(replace(g, index=change(g.index)) for g in node.guards))

    return moved
