"""Moments of a contraction's sums from products of x with itself: which contractions have them, and their numbers.

With w the weights of one output channel and x one entry of the batch, the sums over positions p of a convolution

    y[p] = sum over c and taps t of  w[c, t] x[c, u + offset(t)]            where p = phase(t) + out_stride u

and of their squares are forms in w, whose coefficients depend on x alone::

    sum of y[p]     = sum over c, t of           w[c, t] S(c, t)            S(c, t) = sum over u of x[c, u + offset(t)]
    sum of y[p] ** 2 = sum over c, t, c', t' of  w[c, t] w[c', t'] G(c, t, c', t')
                       G = sum over u of x[c, u + offset(t)] x[c', u + offset(t')],   t and t' of one phase

So the statistics of a norm behind a convolution need no convolution. G depends on the taps only through the *shift* d =
offset(t') - offset(t), and through where u ends: for q = u + offset(t)

    G(c, t, c', t') = sum over q in interval(t) of x[c, q] x[c', q + d]

An interval ends at most as far from an end of x as a window is wide. Along each axis the ends of all intervals cut x
into *segments*, of which most are one position long and one is nearly all of x. Products of segments are *cells*; a
kernel adds up x[c, q] x[c', q + d] for each cell and each d, and G is the sum over the cells of the intervals. Of d and
-d one is enough, as G is symmetric.

Everything is in float64, in which products of float32 are exact, so that nothing is lost where a mean is much larger
than what lies around it, or a filter takes differences of neighbours. What is Inf or NaN in x, where any window reads
it, makes the variance of every channel NaN, as it is; so sums of squares may meet it where they need not, times zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap
from kernelwright.plan.expressions import Apply, Constant, Expression, Load, Reduced, walk
from kernelwright.roofline.multiprocessors import HOPPER

#: Channels that one product of float64 tensor cores takes of either side, and positions.
CHANNELS, POSITIONS = 8, 4
#: Shifts of a block, two registers of float64 each, and the most lines back that it keeps values of.
_MOST_PRODUCTS, _MOST_LINES = 16, 8
#: Lines of an item, which a warp goes down; items of a block, and blocks that fill a device.
LINES, _MOST_ITEMS, _FILLED = 16, 32, HOPPER.count * 6
#: Warps of a block.
WARPS = 4
#: Pairs of taps at most.
_MOST_PAIRS = 2048

Shift = tuple[int, ...]
"""A difference of two taps' offsets, along each axis."""

Box = tuple[tuple[int, int], ...]
"""Positions from one, up to another, along each axis."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Shifts that a block takes together. moved: for each shift along the axes before the last two (beyond) those along
    the last one (aside), in order, each of which comes with all lines ahead that there are."""

    moved: tuple[tuple[Shift, tuple[int, ...]], ...]
    shifts: tuple[Shift, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """What one block adds up of x[n, g], one of several of a cell: the items from ``first`` to ``last``."""

    cell: int
    first: int
    last: int


@dataclass(frozen=True)
class Correlation:
    """Numbers of the kernel that adds up products of x with itself."""

    kernel: Contraction

    @cached_property
    def axes(self) -> tuple[ContractionAxis, ...]:
        """The kernel's spatial axes, two at least: lines are along the last but one."""
        single = ContractionAxis(1, 1, 1, 1, 1, (Tap(0, 0, 0),))
        return (single,) * (2 - len(self.kernel.axes)) + self.kernel.axes

    @cached_property
    def segments(self) -> tuple[Box, ...]:
        """Along each axis, the segments into which ends of intervals cut what any tap reads."""
        found = []
        for axis in self.axes:
            intervals = [interval(axis, tap) for tap in axis.taps]
            ends = sorted({end for i in intervals if i[0] < i[1] for end in i})
            found.append(tuple((first, last) for first, last in pairwise(ends)
                               if any(i[0] <= first and last <= i[1] for i in intervals)))
        return tuple(found)

    @property
    def read(self) -> Box:
        """The positions that taps read, along each axis."""
        return tuple((segments[0][0], segments[-1][1]) for segments in self.segments)

    @cached_property
    def cells(self) -> tuple[Box, ...]:
        """Every product of segments, those of the last axis next to each other."""
        return tuple(product(*self.segments))

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """The shifts d of two taps of one phase, of d and -d the one that goes ahead, batch by batch."""
        each = [sorted({b.offset - a.offset for a in axis.taps for b in axis.taps if a.phase == b.phase})
                for axis in self.axes]
        zero = (0,) * len(self.axes)
        found = [d for d in product(*each) if order_of(d) >= zero]
        return tuple(d for batch in _batches(found) for d in batch.shifts)

    @property
    def lines(self) -> int:
        """The most lines that a shift goes ahead."""
        return max(d[-2] for d in self.shifts)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """The shifts in batches, one after the other."""
        return _batches(self.shifts)

    @property
    def blocks(self) -> int:
        """Blocks of 8 channels of x."""
        return -(-self.kernel.in_channels // CHANNELS)

    @property
    def results(self) -> int:
        """Numbers that a slot gives for a pair of blocks of channels: 8 x 8 of each shift, then sums of 8 channels."""
        return CHANNELS**2 * len(self.shifts) + CHANNELS

    def items(self, cell: int) -> tuple[int, int, int]:
        """The items of a cell: places along the axes before the last two, groups of lines, groups of 4 positions."""
        *outer, lines, positions = (last - first for first, last in self.cells[cell])
        return prod(outer), -(-lines // LINES), -(-positions // POSITIONS)

    def work(self, slot: Slot) -> int:
        """About how much there is to do in a slot: items by their lines."""
        first, last = self.cells[slot.cell][-2]
        return (slot.last - slot.first) * min(LINES, last - first)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """What blocks add up, in the order of cells: so many that they fill a device, where there is so much to do."""
        counts = [prod(self.items(cell)) for cell in range(len(self.cells))]
        every = sum(counts) * self.kernel.batch * self.kernel.groups * len(self.batches) * self.blocks**2
        most = min(_MOST_ITEMS, max(WARPS, every // _FILLED // WARPS * WARPS))
        return tuple(Slot(cell, first, min(count, first + most)) for cell, count in enumerate(counts)
                     for first in range(0, count, most))

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The first slot of each cell, and the number of all."""
        starts = {slot.cell: number for number, slot in reversed(list(enumerate(self.slots)))}
        return (*(starts[cell] for cell in range(len(self.cells))), len(self.slots))

    @cached_property
    def taps(self) -> tuple[tuple[Tap, ...], ...]:
        """The taps of a window, one for each axis, that meet x."""
        every = product(*(axis.taps for axis in self.axes))
        return tuple(taps for taps in every if all(first < last for first, last in self.intervals(taps)))

    def intervals(self, taps: tuple[Tap, ...]) -> Box:
        """The positions of x that a tap of the window reads."""
        return tuple(interval(axis, tap) for axis, tap in zip(self.axes, taps, strict=True))

    def range_of(self, taps: tuple[Tap, ...]) -> Box:
        """The segments of these positions, along each axis."""
        return tuple((next(n for n, s in enumerate(segments) if s[0] == first),
                      next(n for n, s in enumerate(segments, 1) if s[1] == last))
                     for (first, last), segments in zip(self.intervals(taps), self.segments, strict=True))

    @cached_property
    def pairs(self) -> tuple[tuple[int, int, int], ...]:
        """Pairs of taps of one phase, and their shift, all as numbers, of each pair one order."""
        numbers, found = {d: n for n, d in enumerate(self.shifts)}, []
        for (first, a), (second, b) in product(enumerate(self.taps), repeat=2):
            shift = tuple(t.offset - s.offset for s, t in zip(a, b, strict=True))
            if all(s.phase == t.phase for s, t in zip(a, b, strict=True)) and shift in numbers:
                found.append((first, second, numbers[shift]))
        return tuple(found)

    @property
    def products(self) -> int:
        """How often 8 x 8 channels at 4 positions are multiplied, for one shift each time."""
        items = sum(prod(self.items(cell)[::2]) * (box[-2][1] - box[-2][0]) for cell, box in enumerate(self.cells))
        return items * self.kernel.batch * self.kernel.groups * self.blocks**2 * len(self.shifts)

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """Offset and bytes of each part of the workspace, all float64: "cells" of shape (batch, groups, slots, blocks,
        blocks, results), "gram" (batch, groups, pairs, in_channels, in_channels), "sums" (batch, groups, taps,
        in_channels)."""
        kernel, at, result = self.kernel, 0, {}
        entries = kernel.batch * kernel.groups
        for name, count in {"cells": len(self.slots) * self.blocks**2 * self.results,
                            "gram": len(self.pairs) * kernel.in_channels**2,
                            "sums": len(self.taps) * kernel.in_channels}.items():
            result[name] = (at, 8 * count * entries)
            at += -(-8 * count * entries // 256) * 256
        return result

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the whole workspace."""
        at, size = list(self.places.values())[-1]
        return at + -(-size // 256) * 256


def _batches(shifts: Iterable[Shift]) -> tuple[Batch, ...]:
    """Shifts in batches of at most 16, of all lines each: a warp that goes down lines reads x at each place beyond and
    aside once, for all lines that it went past."""
    places: dict[tuple[Shift, int], list[Shift]] = {}
    for d in shifts:
        places.setdefault((d[:-2], d[-1]), []).append(d)
    groups: list[list[tuple[Shift, int]]] = []
    count = _MOST_PRODUCTS
    for place in sorted(places, key=lambda p: (any(p[0]), p)):
        if count + len(places[place]) > _MOST_PRODUCTS:
            groups.append([])
            count = 0
        groups[-1].append(place)
        count += len(places[place])
    result = []
    for group in groups:
        moved = tuple((beyond, tuple(p[1] for p in group if p[0] == beyond))
                      for beyond in dict.fromkeys(p[0] for p in group))
        result.append(Batch(moved, tuple(d for place in group for d in sorted(places[place], key=order_of))))
    return tuple(result)


def interval(axis: ContractionAxis, tap: Tap) -> tuple[int, int]:
    """The positions of x that a tap reads, from one up to another; none where the second is not the greater one."""
    count = -(-(axis.out_size - tap.phase) // axis.out_stride)
    return max(0, tap.offset), min(axis.in_size, tap.offset + count)


def order_of(shift: Shift) -> Shift:
    """Shifts in order: by lines, by what lies beyond, by positions."""
    return (shift[-2], *shift[:-2], shift[-1])


def slope_of(expression: Expression) -> Expression | None:
    """What a change of the sums is multiplied by, where an expression is affine in them, with coefficients that are the
    same at all positions; else None."""
    path: list[tuple[Apply, bool]] = []
    while expression is not Reduced(0):
        if not isinstance(expression, Apply) or expression.function not in ("add", "sub", "mul", "div", "neg"):
            return None
        moving = [Reduced(0) in walk(argument) for argument in expression.arguments]
        others = [argument for argument, moves in zip(expression.arguments, moving, strict=True) if not moves]
        if sum(moving) != 1 or any(_moves(other) for other in others) or (expression.function == "div" and moving[1]):
            return None
        path.append((expression, moving[0]))
        expression = expression.arguments[moving.index(True)]
    slope: Expression = Constant(1.0)
    for part, first in reversed(path):
        if part.function in ("mul", "div"):
            other = part.arguments[first]
            slope = other if slope is Constant(1.0) and part.function == "mul" else Apply(part.function, (slope, other))
        elif part.function == "neg" or (part.function == "sub" and not first):
            slope = Apply("neg", (slope,))
    return slope


def _moves(expression: Expression) -> bool:
    """Whether something that an expression loads is not the same at all positions."""
    indices = [i for part in walk(expression) if isinstance(part, Load)
               for i in (part.index, *(guard.index for guard in part.guards))]
    return any(any(index.strides[3:]) for index in indices)


def correlates(kernel: Contraction) -> bool:
    """Whether a kernel has nothing but sums and moments, over all positions, of what is affine in its sums, and shifts
    few enough for products of x with itself."""
    if not kernel.position_reductions or not kernel.axes or any(axis.in_stride != 1 for axis in kernel.axes):
        return False
    if not all(uses_reductions(store.expression) for store in kernel.stores):
        return False
    if not all(total.kind in ("sum", "moments") and slope_of(total.expression) is not None
               for total in kernel.position_reductions):
        return False
    if not prod(kernel.domain) or not prod(kernel.left_domain) or max(a.in_size for a in kernel.axes) >= 2**30:
        return False
    numbers = Correlation(kernel)
    if prod(sum(a.phase == b.phase for a in axis.taps for b in axis.taps) for axis in numbers.axes) > 2 * _MOST_PAIRS:
        return False
    if any(a[1] != b[0] for segments in numbers.segments for a, b in pairwise(segments)):
        return False  # what no tap reads must not be read: it may be Inf, and is next to what is
    lines = {d[-2] for d in numbers.shifts}
    if not numbers.taps or len(lines) > _MOST_PRODUCTS or max(lines) > _MOST_LINES:
        return False
    return max(prod(numbers.items(cell)) for cell in range(len(numbers.cells))) < 2**30
