"""The sizes at which a program is looked at: all of them where they are few, else those at which texts may change."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

from kernelwright.dynamic.formulas import Sizes, points_of
from kernelwright.dynamic.sizes import Size

#: So many combinations of sizes are looked at one by one.
EXHAUSTIVE = 160


def are_few(sizes: Sequence[Size]) -> bool:
    """Whether every combination of sizes is looked at."""
    return prod(size.high - size.low + 1 for size in sizes) <= EXHAUSTIVE


def looked_at(sizes: Sequence[Size]) -> list[Sizes]:
    """The points at which texts are made: all, or a grid of the ends, the example, powers of two, numbers around these,
    and some odd ones."""
    if are_few(sizes):
        return list(points_of([(size.low, size.high) for size in sizes]))
    each = max(6, int(EXHAUSTIVE ** (1 / len(sizes))))
    return list(itertools.product(*(_values(size, each) for size in sizes)))


def _values(size: Size, most: int) -> list[int]:
    powers = [2 ** n for n in range(size.high.bit_length()) if size.low < 2 ** n < size.high]
    wanted = [size.low, size.high, size.example, size.low + 1, size.high - 1, size.example + 1, size.example - 1,
              (size.low + size.high) // 2 | 1, *reversed(powers), *(p - 1 for p in reversed(powers)),
              *(p * 3 // 2 for p in reversed(powers)), *(p * 5 // 4 + 1 for p in reversed(powers))]
    return sorted(list(dict.fromkeys(v for v in wanted if size.low <= v <= size.high))[:most])
