"""The numbers of one kernel of a direct contraction: threads, registers, and where operands lie in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import ceil, prod

import numpy as np

from kernelwright.codegen.cuda.direct_conv.cells import Line, Schedule, stored_in_pairs
from kernelwright.codegen.cuda.expressions import affine_text
from kernelwright.plan.contraction.record import Contraction

#: Bytes of shared memory that a block may have without asking for more.
MOST_SHARED = 48 * 1024
#: Products that are added up in one chain of float32 sums at most; longer sums have two levels.
CHAIN = 4096
#: Elements of a run that are held in registers while the taps along it are walked.
MOST_COLUMN = 40
_BANKS = 32
_OTHER_REGISTERS = 56
#: Multiply-adds of one channel up to which all taps are unrolled, where they can stay a loop.
_UNROLLED = 1280
_WEIGHT_ALIGNMENT = 4


#: Layouts of one contraction share lines, and what these have found out.
_line = lru_cache(maxsize=4096)(Line)


@dataclass(frozen=True)
class Layout:
    """The numbers of one kernel of a contraction with at least one axis. Sizes are in elements unless named bytes."""

    kernel: Contraction
    schedule: Schedule
    phases: tuple[tuple[int, ...], ...]
    padded: bool = True
    """Whether rows are padded against conflicts; not to know is quicker."""

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The axes."""
        plan, last = self.schedule, len(self.phases) - 1
        return tuple(_line(axis, phases, tile, plan.run if n == plan.run_axis else 1, n == last,
                           plan.lanes if n == last else 1)
                     for n, (axis, phases, tile) in enumerate(zip(self.kernel.axes, self.phases, plan.tile,
                                                                  strict=True)))

    @cached_property
    def run_line(self) -> Line:
        """The axis of the runs."""
        return self.lines[self.schedule.run_axis]

    @cached_property
    def in_column(self) -> bool:
        """Whether a run's elements are read once, and taps along it take them from registers."""
        return not self.run_line.last and self.run_line.column <= MOST_COLUMN

    @cached_property
    def phase_count(self) -> int:
        """Phases of a thread."""
        return prod(len(p) for p in self.phases)

    @cached_property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.phase_count * self.schedule.run * self.schedule.channels

    @cached_property
    def met(self) -> tuple[bool, ...]:
        """Whether a phase of a thread has taps."""
        some = [{t.phase for t in line.taps} for line in self.lines]
        return tuple(all(p in found for p, found in zip(phase, some, strict=True)) for phase in product(*self.phases))

    @cached_property
    def moved(self) -> int:
        """Sums of a thread that join a second level after each block."""
        return sum(self.met) * self.schedule.run * self.schedule.channels if self.two_levels else 0

    @cached_property
    def window(self) -> int:
        """Combinations of taps."""
        return prod(len(line.taps) for line in self.lines)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Axes as their taps are walked, outermost first: the axis of the runs last, where its inputs are held."""
        run = (self.schedule.run_axis,) if self.in_column else ()
        return *(n for n in range(len(self.lines)) if n not in run), *run

    @cached_property
    def rolled(self) -> tuple[frozenset[int], int]:
        """Axes whose taps stay a loop, outermost first, until what is unrolled is short enough; its multiply-adds."""
        found, work = set(), self.window * self.schedule.run * self.schedule.channels
        for n in self.order:
            line = self.lines[n]
            if work > _UNROLLED and line.regular and not (self.in_column and n == self.schedule.run_axis):
                found.add(n)
                work //= len(line.taps)
        return frozenset(found), work

    @cached_property
    def entries(self) -> tuple[tuple[tuple[int, int], int], ...]:
        """Per axis, the entries of the weight that are staged."""
        return tuple(line.entries for line in self.lines)

    @cached_property
    def staged_window(self) -> int:
        """Staged entries of a window."""
        return prod(count for _, count in self.entries)

    @cached_property
    def total_pairs(self) -> int:
        """All (n, g)."""
        return self.kernel.batch * self.kernel.groups

    @cached_property
    def cell_threads(self) -> int:
        """Threads of one channel_group."""
        return self.schedule.pairs * prod(line.threads for line in self.lines)

    @cached_property
    def threads(self) -> int:
        """Threads of a block: whole warps."""
        return ceil(self.cell_threads * self.schedule.channel_groups / 32) * 32

    @cached_property
    def idle(self) -> bool:
        """Whether some threads of a block own nothing."""
        return self.cell_threads * self.schedule.channel_groups < self.threads

    @cached_property
    def still(self) -> frozenset[str]:
        """Names of the text that are always 0."""
        plan, found = self.schedule, set()
        names = ["pair", *(f"cell{n}" for n in range(len(self.lines))), "channel"]
        found |= {name for name, count in zip(names, self.grid, strict=True) if count == 1}
        for n, line in enumerate(self.lines):
            counts = {f"own{n}": line.threads, f"q{n}": line.span // line.lanes, f"j{n}": len(line.taps)}
            found |= {name for name, count in counts.items() if count == 1}
        counts = {"p": plan.pairs, "own_pair": plan.pairs, "channel_group": plan.channel_groups, "c": plan.depth,
                  "r": plan.run,
                  "o": self.columns, "first": self.chunks}
        return frozenset(found | {name for name, count in counts.items() if count == 1})

    def affine(self, strides: Sequence[int], names: Sequence[str], offset: int = 0) -> str:
        """Text of ``offset + sum(stride * name)``, without names that are always 0."""
        kept = [0 if name in self.still else stride for stride, name in zip(strides, names, strict=True)]
        return affine_text(kept, names, offset, False)

    @cached_property
    def registers(self) -> int:
        """Registers that a thread needs, about."""
        held = self.run_line.column if self.in_column else self.schedule.run
        return self.sums + self.moved + held + min(16, self.schedule.channels) + _OTHER_REGISTERS

    @cached_property
    def resident(self) -> int:
        """Blocks of a multiprocessor whose registers fit; 0 where those of one do not.

        A multiprocessor has 65536 registers, which are given to four warps at a time, 8 for each thread.
        """
        return min(16, 65536 // (ceil(self.registers / 8) * 8 * ceil(self.threads / 128) * 128))

    @cached_property
    def columns(self) -> int:
        """Output channels of a block."""
        return self.schedule.channels * self.schedule.channel_groups

    @cached_property
    def chunks(self) -> int:
        """Steps over the input channels."""
        return ceil(self.kernel.in_channels / self.schedule.depth) if self.window else 0

    @cached_property
    def blocks(self) -> int:
        """Chains of additions in a step of channels: several, where the schedule has blocks within a step."""
        size = self.schedule.block
        return self.schedule.depth // size if self.window and 0 < size < self.schedule.depth else 1

    @cached_property
    def block_unrolled(self) -> bool:
        """Whether the products of such a block are written one after the other: its sums need not be set to 0."""
        return self.blocks > 1 and not self.rolled[0] and self.rolled[1] * self.schedule.block <= _UNROLLED

    @cached_property
    def two_levels(self) -> bool:
        """Whether sums of blocks of channels, at most a step, are added to sums of blocks."""
        if self.chunks * self.blocks < 2:
            return False
        return self.schedule.block > 0 or self.kernel.in_channels * self.window > CHAIN

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Blocks along pairs, each axis, output channels."""
        return (ceil(self.total_pairs / self.schedule.pairs), *(line.tiles for line in self.lines),
                ceil(self.kernel.out_channels / self.columns))

    # Shared memory: inputs as [pair][channel][rows...][row_pitch], then weights as [pair][channel][entry][column].

    @cached_property
    def row_pitch(self) -> int:
        """Elements from one row to the next: padded until the threads of a warp meet the fewest bank conflicts."""
        line = self.lines[-1]
        width = ceil(line.part * line.apart / line.lanes) * line.lanes
        if not self.padded:
            return width
        best = (self.rounds(width), width)
        for pitch in range(width + line.lanes, width + _BANKS, line.lanes):
            if best[0] == 1:
                break
            best = min(best, (self.rounds(pitch), pitch))
        return best[1]

    def pitches(self, row_pitch: int | None = None) -> tuple[int, ...]:
        """Elements from one channel to the next, from one row of each axis, from one element of the last axis (1)."""
        result = [1]
        pitch = self.row_pitch if row_pitch is None else row_pitch
        for line in reversed(self.lines[:-1]):
            result.insert(0, pitch)
            pitch *= line.span
        return pitch, *result

    @cached_property
    def plane(self) -> int:
        """Elements of one channel."""
        return self.pitches()[0]

    def rounds(self, row_pitch: int | None = None) -> float:
        """Rounds of a warp's read of one input for each thread, on average over the first warps of a block."""
        if (self.lines[-1].threads % _BANKS == 0 and self.lines[-1].cell_step == 1) or not self.padded:
            return 1.0
        plane, *pitches = self.pitches(row_pitch)
        strides = [self.schedule.depth * plane]
        strides += [p * line.cell_step * (1 if line.last else line.run)
                    for p, line in zip(pitches, self.lines, strict=True)]
        sizes = [self.schedule.pairs, *(line.threads for line in self.lines)]
        rest = np.arange(min(self.cell_threads // _BANKS, 4) * _BANKS or self.cell_threads)
        place = np.zeros_like(rest)
        for stride, size in zip(reversed(strides), reversed(sizes), strict=True):
            place += rest % size * stride
            rest //= size
        banks = (place % _BANKS).reshape(-1, min(_BANKS, len(place)))
        return float((banks[:, :, None] == np.arange(_BANKS)).sum(1).max(1).mean())

    @cached_property
    def tile_floats(self) -> int:
        """Elements of staged inputs, rounded up so that weights begin aligned."""
        count = self.schedule.pairs * self.schedule.depth * self.plane
        return ceil(count / _WEIGHT_ALIGNMENT) * _WEIGHT_ALIGNMENT

    @cached_property
    def column_pitch(self) -> int:
        """Elements from one entry of a weight to the next: aligned, and an odd number of vectors of four, so that
        writes along entries meet as few conflicts as they can."""
        if self.schedule.channels % 4:
            return self.columns
        return self.columns + (4 if self.columns // 4 % 2 == 0 else 0)

    @cached_property
    def weight_floats(self) -> int:
        """Elements of staged weights."""
        pairs = self.schedule.pairs if self.kernel.groups > 1 else 1
        return pairs * self.schedule.depth * self.staged_window * self.column_pitch

    @cached_property
    def trades(self) -> bool:
        """Whether threads trade sums before they store them."""
        return self.schedule.writes == "traded" and len(self.phases[-1]) > 1

    @cached_property
    def pairs(self) -> bool:
        """Whether two neighbouring sums are stored at once."""
        return self.schedule.writes == "pairs" and stored_in_pairs(self.kernel, self.phases)

    @cached_property
    def traded_floats(self) -> int:
        """Elements that all threads trade at once: their sums of one output channel."""
        return self.threads * self.phase_count * self.schedule.run if self.trades else 0

    @cached_property
    def shared_floats(self) -> int:
        """Elements of shared memory; what is traded takes the place of the operands."""
        return max(self.tile_floats + self.weight_floats, self.traded_floats, 4)
