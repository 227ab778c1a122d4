"""The products of an item of a convolution that goes down strips (`contraction_strips`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kernelwright.codegen.contraction_rows import CHUNK
from kernelwright.plan.contraction import Tap

if TYPE_CHECKING:
    from kernelwright.codegen.contraction_strips import Strips


@dataclass(frozen=True, slots=True)
class Product:
    """16 channels of a product: ``plane`` and ``line`` of the window, ``row`` of x beyond the item's first one, rows
    from its first half to its second, and of w for each half the chunk and for each of the stacked lines the entry
    of the window, None where that has none there."""

    plane: int
    line: int
    row: int
    apart: int
    halves: tuple[tuple[int, tuple[int | None, ...]], ...]


def window_offsets(numbers: Strips) -> list[int]:
    """Lines of x that an item's window has, from its first one."""
    axis = numbers.line_axis
    return sorted({tap.offset - numbers.first_offset + line * axis.in_stride
                   for tap in axis.taps if tap.phase == 0 for line in range(numbers.stacked)})


def products_of(numbers: Strips) -> tuple[Product, ...]:
    """All of them, of one pair of terms."""
    found = []
    axis, positions = numbers.line_axis, sorted(numbers.positions.taps, key=lambda t: t.offset)
    taps = {tap.offset - numbers.first_offset: tap for tap in axis.taps if tap.phase == 0}
    rows = [position.offset + numbers.lead for position in positions]

    def entries(outer: tuple[Tap, ...], line: int, position: Tap) -> tuple[int | None, ...]:
        """Of each of the stacked lines the entry of the window that a line of x meets."""
        own = [taps.get(line - i * axis.in_stride) for i in range(numbers.stacked)]
        return tuple(None if tap is None else _entry(numbers, (*outer, tap, position)) for tap in own)

    for (plane, outer), line in product(enumerate(numbers.planes), window_offsets(numbers)):
        if numbers.needed_depth > CHUNK:
            found += [Product(plane, line, row + chunk * numbers.line_rows, numbers.line_rows,
                              tuple((c, entries(outer, line, position)) for c in (chunk, chunk + 1)))
                      for position, row in zip(positions, rows, strict=True)
                      for chunk in range(0, numbers.chunks, 2)]
            continue
        for i in range(0, len(positions), 2):
            last = i + 1 == len(positions)
            second = (None,) * numbers.stacked if last else entries(outer, line, positions[i + 1])
            found.append(Product(plane, line, rows[i], 1 if last else rows[i + 1] - rows[i],
                                 ((0, entries(outer, line, positions[i])), (0, second))))
    return tuple(found)


def _entry(numbers: Strips, taps: tuple[Tap, ...]) -> int:
    number = 0
    for axis, tap in zip(numbers.kernel.axes, taps, strict=True):
        number = number * axis.kernel + tap.number
    return number
