"""The geometry of a tile: the ways of a block's threads over it, and its place in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from kernelwright.codegen.cuda.expressions import affine_text

BANKS = 32
"""Banks of shared memory, 4 bytes wide."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One way of a block's threads over a tile.

    order: the axes, slowest first. extents: of the tile; 1 along axes where this way does not move. lanes:
    neighbours along the last axis of ``order`` that a thread takes together.
    """

    order: tuple[int, ...]
    extents: tuple[int, ...]
    lanes: int
    threads: int

    @property
    def count(self) -> int:
        """Positions: points over lanes."""
        return prod(self.extents) // self.lanes

    @property
    def steps(self) -> int:
        """Positions of a thread."""
        return -(-self.count // self.threads)

    def _radices(self) -> list[tuple[int, int, int]]:
        """(axis, number of places, width of a place), fastest first."""
        result = []
        for axis in reversed(self.order):
            width = self.lanes if axis == self.order[-1] else 1
            if self.extents[axis] > width:
                result.append((axis, self.extents[axis] // width, width))
        return result

    def place(self, position: int) -> dict[int, int]:
        """The coordinates of a position."""
        found = {}
        for axis, radix, width in self._radices():
            found[axis] = position % radix * width
            position //= radix
        return found

    def coordinates(self, step: str) -> dict[int, str]:
        """Text of the coordinates of a thread's step, where it moves.

        While the threads of a block fill whole places, what depends on the thread and what depends on the step stay
        apart: then the compiler computes a thread's part once.
        """
        radices = self._radices()
        found = {}
        mine, span, rounds = "threadIdx.x", self.threads, step
        rest = ""  # the position that is left, once thread and step no longer stay apart
        for number, (axis, radix, width) in enumerate(radices):
            last = number == len(radices) - 1
            if not rest and span % radix and radix % span:
                rest = plus(mine, times(rounds, span))
            if rest:
                text, rest = rest if last else f"({rest}) % {radix}u", f"({rest}) / {radix}u"
            elif last:
                text = plus(mine, times(rounds, span))
            elif span >= radix:
                text = mine if span == radix else f"{mine} % {radix}u"
                mine, span = (f"{mine} / {radix}u", span // radix) if span > radix else ("0", 1)
            else:
                text = plus(mine, times(f"{rounds} % {radix // span}u", span))
                mine, span, rounds = "0", 1, f"{rounds} / {radix // span}u"
            found[axis] = text if width == 1 else f"({text}) * {width}u"
        return found


def times(step: str, factor: int) -> str:
    """Text of ``step * factor``."""
    return "0" if step == "0" else step if factor == 1 else f"{step} * {factor}u"


def plus(left: str, right: str) -> str:
    """Text of ``left + right``."""
    return right if left == "0" else left if right == "0" else f"{left} + {right}"


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of values in shared memory: its name, the element distance per axis (0: one place), its elements."""

    name: str
    pitch: tuple[int, ...]
    elements: int

    def at(self, moved: str = "") -> str:
        """Text of the element at the coordinates c0, c1, ...; ``moved`` is added to the position."""
        names = [f"c{axis}" for axis in range(len(self.pitch))]
        return f"{self.name}[{plus(affine_text(self.pitch, names, 0, False), moved or '0')}]"


def conflicts(turn: Turn, pitch: Sequence[int], words: int) -> int:
    """Rounds that the accesses of a block's first warps to shared memory take, beyond one each.

    words: 4-byte words of an element. A warp's access of 8 bytes is made in two halves.
    """
    together = BANKS // words
    extra = 0
    for access in _accesses(turn, together):
        banks: dict[int, set[int]] = {}
        for coordinates in access:
            place = sum(pitch[axis] * c for axis, c in coordinates)
            banks.setdefault(place % together, set()).add(place)
        extra += max(map(len, banks.values())) - 1
    return extra


@lru_cache(maxsize=64)
def _accesses(turn: Turn, together: int) -> list[list[tuple[tuple[int, int], ...]]]:
    """The coordinates, with their axes, that the first warps of a block access at a time."""
    return [[tuple(turn.place(position).items()) for position in range(first, min(turn.count, first + together))]
            for first in range(0, min(turn.count, 4 * BANKS), together)]
