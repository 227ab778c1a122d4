"""The products of an item of a convolution that goes down strips (`contraction_strips`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kernelwright.codegen.contraction_rows import CHUNK
from kernelwright.plan.contraction import Tap

if TYPE_CHECKING:
    from kernelwright.codegen.contraction_strips_items import StripItems


@dataclass(frozen=True, slots=True)
class Product:
    """16 channels of a product: ``plane`` and ``line`` of the window, ``row`` of x beyond the item's first one, rows
    from its first half to its second, and of w for each half the chunk and the entries of the window: for each of the
    stacked lines, and each phase of positions, one, or None where these have none there."""

    plane: int
    line: int
    row: int
    apart: int
    halves: tuple[tuple[int, tuple[int | None, ...]], ...]


def window_offsets(numbers: StripItems) -> list[int]:
    """Lines of x that an item's window has, from its first one."""
    return sorted({tap.offset - numbers.first_offset for tap in numbers.item_line.taps})


def position_offsets(numbers: StripItems) -> list[int]:
    """Positions of x that it has along lines."""
    return sorted({tap.offset for tap in numbers.positions.taps})


def products_of(numbers: StripItems) -> tuple[Product, ...]:
    """All of them, of one pair of terms."""
    found = []
    lines = {(tap.phase, tap.offset - numbers.first_offset): tap for tap in numbers.item_line.taps}
    positions = {(tap.phase, tap.offset): tap for tap in numbers.positions.taps}
    offsets = sorted(position_offsets(numbers), key=numbers.row_of)
    rows = [numbers.row_of(offset) for offset in offsets]

    def entries(outer: tuple[Tap, ...], line: int, offset: int) -> tuple[int | None, ...]:
        """Of each of the stacked lines and phases the entry of the window that this position of x meets."""
        taps = [(lines.get((i, line)), positions.get((phase, offset)))
                for i in range(numbers.stacked) for phase in range(numbers.interleaved)]
        return tuple(_entry(numbers, (*outer, own, last)) if own and last else None for own, last in taps)

    for (plane, outer), line in product(enumerate(numbers.planes), window_offsets(numbers)):
        if numbers.needed_depth > CHUNK:
            found += [Product(plane, line, row + chunk * numbers.line_rows, numbers.line_rows,
                              tuple((c, entries(outer, line, offset)) for c in (chunk, chunk + 1)))
                      for offset, row in zip(offsets, rows, strict=True) for chunk in range(0, numbers.chunks, 2)]
            continue
        for i in range(0, len(offsets), 2):
            last = i + 1 == len(offsets)
            second = (None,) * (numbers.stacked * numbers.interleaved) if last else entries(outer, line, offsets[i + 1])
            found.append(Product(plane, line, rows[i], 1 if last else rows[i + 1] - rows[i],
                                 ((0, entries(outer, line, offsets[i])), (0, second))))
    return tuple(found)


def _entry(numbers: StripItems, taps: tuple[Tap, ...]) -> int:
    number = 0
    for axis, tap in zip(numbers.kernel.axes, taps, strict=True):
        number = number * axis.kernel + tap.number
    return number
