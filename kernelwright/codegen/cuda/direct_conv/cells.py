"""One axis of a direct contraction's tiles, and how the whole is divided.

A *cell* is one coordinate u per axis: the output positions ``phase + out_stride * u`` of the phases that one kernel
computes, which all read neighbouring inputs. A block owns a box of cells (its tile) for some pairs (n, g) and some
output channels; a thread owns a few cells in a run along one axis, all phases of them, and a few channels. Threads
that are neighbours in a warp own neighbouring cells of the last axis, so that reads and writes of memory coalesce
whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, prod

from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap

#: Phases that one thread computes at most; beyond that, leading axes have a kernel for each of their phases.
MOST_PHASES = 32
#: Taps up to which inputs of a strided axis lie apart in shared memory.
_MOST_APART = 16


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a direct contraction is divided.

    tile: cells of a block along each axis; pairs: (n, g) of a block. run_axis, run: the axis along which a thread
    owns ``run`` cells (neighbours; along the last axis they are as far apart as the threads of a row are many).
    channels: output channels of a thread; channel_groups: groups of threads that differ in their output channels.
    depth: input channels in shared memory at once. lanes: inputs read at once, 4 or 1.
    writes: how the phases of the last axis, which are neighbours in memory, get there: "straight" as each thread has
    them, "pairs" of two at once, or "traded" between the threads of a row through shared memory first.
    block: input channels whose products are one chain of additions, which then joins a second level of sums; 0 where
    all of them are one. split: so many leading axes have a kernel for each of their phases, or more where phases are
    too many for a thread.
    """

    tile: tuple[int, ...]
    pairs: int
    run_axis: int
    run: int
    channels: int
    channel_groups: int
    depth: int
    lanes: int = 1
    writes: str = "straight"
    block: int = 0
    split: int = 0


@dataclass(frozen=True)
class Line:
    """One axis of a tile: ``tile`` cells, ``run`` of them a thread's, and the phases that are computed."""

    axis: ContractionAxis
    phases: tuple[int, ...]
    tile: int
    run: int
    last: bool
    lanes: int

    @cached_property
    def taps(self) -> tuple[Tap, ...]:
        """The taps of the phases."""
        return tuple(t for t in self.axis.taps if t.phase in self.phases)

    @cached_property
    def cells(self) -> int:
        """Cells of the whole axis."""
        return max(0, ceil((self.axis.out_size - self.phases[0]) / self.axis.out_stride))

    @cached_property
    def tiles(self) -> int:
        """Tiles along the axis."""
        return ceil(self.cells / self.tile)

    @cached_property
    def threads(self) -> int:
        """Threads along the axis."""
        return self.tile // self.run

    @cached_property
    def from_input(self) -> int:
        """The input coordinate of the first staged element of a tile whose first cell is 0."""
        lowest = min((t.offset for t in self.taps), default=0)
        return lowest - lowest % self.lanes

    @cached_property
    def span(self) -> int:
        """Staged input coordinates; a multiple of ``lanes``."""
        reach = max((t.offset for t in self.taps), default=0) - self.from_input
        return ceil((self.axis.in_stride * (self.tile - 1) + reach + 1) / self.lanes) * self.lanes

    @cached_property
    def apart(self) -> int:
        """Input coordinates whose elements lie apart in shared memory: along the last axis, those of one remainder by
        the stride are neighbours, so that the threads of a warp meet different banks (unless taps are so many that
        they stay a loop, for which they lie in order)."""
        return self.axis.in_stride if self.last and len(self.taps) <= _MOST_APART else 1

    @cached_property
    def part(self) -> int:
        """Staged elements of each remainder."""
        return ceil(self.span / self.apart)

    def shift(self, tap: Tap) -> int:
        """Where a tap's element of cell 0 lies along the axis, in elements of shared memory (last axis) or in rows."""
        beyond = tap.offset - self.from_input
        return beyond % self.apart * self.part + beyond // self.apart

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """The same of every tap."""
        return tuple(map(self.shift, self.taps))

    @cached_property
    def regular(self) -> bool:
        """Whether taps can stay a loop: they are of one phase, and their numbers and places have steps."""
        return progression(list(self.shifts)) is not None and len({t.phase for t in self.taps}) == 1 \
            and progression([t.number for t in self.taps]) is not None

    @cached_property
    def entries(self) -> tuple[tuple[int, int], int]:
        """Entries of the weight that are staged: ((first, step), count) of their numbers. All of the axis, where the
        taps' numbers are in no progression."""
        found = progression([t.number for t in self.taps] or [0])
        return (found, len(self.taps)) if found else ((0, 1), self.axis.kernel)

    def place(self, q: str) -> str:
        """Text of where the staged coordinate ``q`` lies in its row."""
        return q if self.apart == 1 else f"{q} % {self.apart} * {self.part} + {q} / {self.apart}"

    @cached_property
    def cell_step(self) -> int:
        """The same from one cell to the next."""
        return self.axis.in_stride // self.apart

    @cached_property
    def run_step(self) -> int:
        """The same from one cell of a thread's run to the next."""
        return self.cell_step * (self.threads if self.last else 1)

    @cached_property
    def column(self) -> int:
        """Elements along the axis that a thread's run reads."""
        shifts = self.shifts or (0,)
        return self.axis.in_stride * (self.run - 1) + max(shifts) - min(shifts) + 1

    @cached_property
    def guarded(self) -> bool:
        """Whether some cell of a tile has no output."""
        last = (self.tiles * self.tile - 1) * self.axis.out_stride + self.phases[-1]
        return last >= self.axis.out_size


def progression(values: list[int]) -> tuple[int, int] | None:
    """First value and step, where there are values and they are in arithmetic progression."""
    if not values:
        return None
    step = values[1] - values[0] if len(values) > 1 else 0
    return (values[0], step) if all(v == values[0] + step * n for n, v in enumerate(values)) else None


def least_split(kernel: Contraction) -> int:
    """Leading axes whose phases must have a kernel each."""
    strides = [a.out_stride for a in kernel.axes]
    return next(n for n in range(len(strides) + 1) if prod(strides[n:]) <= MOST_PHASES)


def phase_classes(kernel: Contraction, split: int = 0) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Per axis, the phases of each kernel: all of them, or one of them for each kernel along leading axes."""
    strides, split = [a.out_stride for a in kernel.axes], max(split, least_split(kernel))
    choices = [[(p,) for p in range(s)] if axis < split else [tuple(range(s))] for axis, s in enumerate(strides)]
    for phases in product(*choices):
        if all(p[0] < a.out_size for p, a in zip(phases, kernel.axes, strict=True)):
            yield phases


def stored_in_pairs(kernel: Contraction, phases: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the two phases of the last axis are always aligned neighbours in every output."""
    if len(phases[-1]) != 2 or kernel.axes[-1].out_size % 2:
        return False
    return all(s.index.strides[-1] == 1 and s.index.offset % 2 == 0 and all(n % 2 == 0 for n in s.index.strides[:-1])
               and kernel.output_dtypes[s.buffer] == "float32" for s in kernel.stores)
