"""Which element of a tile each register of each thread holds: thread-value layouts, as CuTe calls them. Of registers of
tensor cores, and of threads over an epilogue subtile in shared memory.

A layout maps (thread, register) to (position, channel, line): a place in the tile of an output. The numbers of a thread
and of a register are written in digits, the least one first, and each digit moves along one mode by its stride::

    thread   = quad + 4 * row + 32 * warp            register = pair + 2 * half + 4 * block
    lane     = thread % 32 = quad + 4 * row

    wgmma m64nNk16, D                                position = row + 8 * half + 16 * warp
                                                     channel  = pair + 2 * quad + 8 * block
    swap-AB: rows of a product are channels          channel  = row + 8 * half + 16 * warp
                                                     position = pair + 2 * quad + 8 * block

The figures are those of the PTX ISA, "Register fragments and shared memory matrix layouts" of wgmma, and "Matrix
fragments for mma.m16n8k16", of which a warp's part of wgmma is two, one below the other.

What an operation asks of a layout is which registers of a thread have the same place along a mode (it folds the
others), which bits of a lane's number move it along the mode (it shuffles along these), and which warps do (they meet
in shared memory). `epilogue.collective` writes these three steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from kernelwright.codegen.terms import plus, times

#: The modes of an output tile.
POSITION, CHANNEL, LINE = 0, 1, 2
#: Lanes of a warp and threads of a warpgroup.
LANES, THREADS = 32, 128


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a thread's or a register's number: ``extent`` values, each ``stride`` further along ``mode``."""

    name: str
    extent: int
    mode: int
    stride: int


@dataclass(frozen=True)
class AccumulatorLayout:
    """A map from (thread, register) to a place in a tile. ``threads`` and ``registers`` are digits, the least first."""

    threads: tuple[Digit, ...]
    registers: tuple[Digit, ...]

    def place(self, thread: int, register: int) -> tuple[int, int, int]:
        """The position, channel and line of a thread's register."""
        place = [0, 0, 0]
        for number, digits in ((thread, self.threads), (register, self.registers)):
            for digit in digits:
                number, value = divmod(number, digit.extent)
                place[digit.mode] += value * digit.stride
        return place[POSITION], place[CHANNEL], place[LINE]

    @cached_property
    def thread_count(self) -> int:
        """Threads that share a tile."""
        return prod(digit.extent for digit in self.threads)

    @cached_property
    def register_count(self) -> int:
        """Registers of each thread."""
        return prod(digit.extent for digit in self.registers)

    def together(self, mode: int) -> tuple[tuple[int, ...], ...]:
        """The registers of a thread by their place along a mode: those of one tuple have the same."""
        groups: dict[int, list[int]] = {}
        for register in range(self.register_count):
            groups.setdefault(self.place(0, register)[mode], []).append(register)
        return tuple(map(tuple, groups.values()))

    def lane_bits(self, mode: int) -> tuple[int, ...]:
        """The bits of a lane's number that move it along a mode."""
        return tuple(bit for bit in range(LANES.bit_length() - 1) if self.place(1 << bit, 0)[mode])

    def warps(self, mode: int) -> int:
        """How many warps have different places along a mode."""
        return len({self.place(thread, 0)[mode] for thread in range(0, self.thread_count, LANES)})

    def text(self, mode: int, **values: str) -> str:
        """A place along a mode as C text: the sum of the digits that are given, in that order. values: their texts."""
        digits = {digit.name: digit for digit in (*self.threads, *self.registers)}
        return plus(*(self._term(digits[name], mode, value) for name, value in values.items()))

    def of_thread(self, mode: int) -> str:
        """Where along a mode a thread's first element is, as C text of ``thread``."""
        terms, below = [], 1
        for digit in self.threads:
            if digit.mode == mode and digit.extent > 1:
                terms.append("thread" + f" / {below}" * (below > 1)
                             + f" % {digit.extent}" * (below * digit.extent < self.thread_count)
                             + f" * {digit.stride}" * (digit.stride > 1))
            below *= digit.extent
        return " + ".join(reversed(terms)) or "0"

    def _term(self, digit: Digit, mode: int, value: str) -> str:
        if digit.mode != mode:
            raise ValueError(f"{digit.name} does not move along mode {mode}")
        if digit.stride == 1:
            return value
        if digit.name == "block" and value.isidentifier():
            return f"{digit.stride} * {value}"
        wraps = digit.name == "warp" and digit is not self.threads[-1]  # lines have the rest of the warp's number
        return times(value, digit.stride) + f" % {digit.extent * digit.stride}" * wraps

    def swapped(self) -> AccumulatorLayout:
        """The layout of the transposed tile: channels for positions."""
        def exchange(digit: Digit) -> Digit:
            return replace(digit, mode={POSITION: CHANNEL, CHANNEL: POSITION}.get(digit.mode, digit.mode))

        return AccumulatorLayout(tuple(map(exchange, self.threads)), tuple(map(exchange, self.registers)))


def wgmma(columns: int, products: int = 1) -> AccumulatorLayout:
    """The sums of ``products`` products of wgmma of 64 positions x ``columns`` channels, one below the other."""
    return AccumulatorLayout(
        (Digit("quad", 4, CHANNEL, 2), Digit("row", 8, POSITION, 1), Digit("warp", 4, POSITION, 16)),
        (Digit("pair", 2, CHANNEL, 1), Digit("half", 2, POSITION, 8), Digit("block", columns // 8, CHANNEL, 8),
         Digit("set", products, POSITION, 64)))


def wgmma_swapped(positions: int) -> AccumulatorLayout:
    """The sums of a product of wgmma of 64 channels x ``positions``."""
    return wgmma(positions).swapped()


def wgmma_swapped_in_pairs(positions: int) -> AccumulatorLayout:
    """The same where rows 8 apart of A are neighbouring channels (`swap_ab` reads A from memory in that order)."""
    quad, row, warp = wgmma_swapped(positions).threads
    pair, half, *rest = wgmma_swapped(positions).registers
    return AccumulatorLayout((quad, replace(row, stride=2), warp), (pair, replace(half, stride=1), *rest))


def wgmma_stacked(positions: int, channels: int, phases: int = 1) -> AccumulatorLayout:
    """The same of ``channels`` at each of several neighbouring lines (`row_buffered`); with two output phases rows 8
    apart are neighbouring positions of one channel."""
    quad, row, warp = wgmma_swapped(positions).threads
    pair, half, *rest = wgmma_swapped(positions).registers
    high = 16 // phases  # channels of a warp
    if phases == 2:
        quad, pair, half = replace(quad, stride=4), replace(pair, stride=2), replace(half, mode=POSITION, stride=1)
        rest = [replace(digit, stride=16) for digit in rest]
    beside = channels // high
    warps = [replace(warp, extent=beside, stride=high)]
    if beside < warp.extent:
        warps.append(Digit("stack", warp.extent // beside, LINE, 1))
    return AccumulatorLayout((quad, row, *warps), (pair, half, *rest))


def over_subtile(across: int, part: int, neighbours: int = 1) -> AccumulatorLayout:
    """128 threads over a subtile in shared memory: ``across`` of them beside each other along positions, of which each
    has so many neighbours, and ``part`` channels of each."""
    return AccumulatorLayout(
        (Digit("row", across, POSITION, neighbours), Digit("part", THREADS // across, CHANNEL, part)),
        (Digit("neighbour", neighbours, POSITION, 1), Digit("column", part, CHANNEL, 1)))


def two_lanes_a_row(part: int) -> AccumulatorLayout:
    """The same where two lanes of a warp, 16 apart, share a position: ``part`` channels each."""
    return AccumulatorLayout(
        (Digit("row", 16, POSITION, 1), Digit("part", 2, CHANNEL, part), Digit("warp", 4, POSITION, 16)),
        (Digit("column", part, CHANNEL, 1),))


def mma_sync(rows: int, columns: int, down: int, across: int) -> AccumulatorLayout:
    """The sums of ``down`` x ``across`` warps on mma.sync, each of which has ``rows`` positions x ``columns`` channels
    as products of 16 x 8."""
    return AccumulatorLayout(
        (Digit("quad", 4, CHANNEL, 2), Digit("row", 8, POSITION, 1), Digit("across", across, CHANNEL, columns),
         Digit("down", down, POSITION, rows)),
        (Digit("pair", 2, CHANNEL, 1), Digit("half", 2, POSITION, 8), Digit("tile_row", rows // 16, POSITION, 16),
         Digit("tile_column", columns // 8, CHANNEL, 8)))
