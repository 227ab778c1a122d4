"""The numbers of a row-buffered implicit GEMM: `Tiling.core` "row_buffered".

A *line* is the last axis, lines lie along the axis before it, and what axes there are before these make *planes*. A
block takes a strip, some lines of the output of one n and one plane, and goes down from one to the next. Of x it brings
each line once, and keeps the few that a window spans in a ring in shared memory, as rows of 8 neighbouring channels,
16 bytes each, so that a tap is a shift in rows::

    ring[slot][term][plane of the window][chunk of 8 channels][row]        row = position along the line + lead
    w[term][product][half][output channel]                                 all of it, for as long as the block lives

Where windows move by two positions, even rows lie before odd ones, so that a tap's are neighbours again.

A product takes 16 channels: of one tap two chunks, or where x has one chunk alone two taps of a line, of which the last
one's partner may be zeros. Output channels are the rows of a product, positions of a line its columns, so that a thread
has two channels, and of each pairs of neighbours.

A product has 64 rows. Where there are fewer output channels, 32 or 16 of them (``tiling.columns``) at two or four
neighbouring lines of the output are its rows, *stacked*: for each line of x that one of these needs w has the entry
that meets it there, or zeros. Of a transposed convolution both output phases of a line's positions are rows, too, 8
apart, so that a thread has both of one channel, *interleaved*: with 32, 16 or 8 channels at one, two or four lines. Its
positions are then those of x.

A *work tile* is what one consumer warpgroup of 128 threads computes at a time: these rows at up to ``tiling.rows``
positions of a line. Consumer warpgroups take work tiles in turns; all work tiles of a consumer warpgroup have the same
channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, Geometry
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR, shares_sectors, suits
from kernelwright.codegen.cuda.gemm.row_buffered.work_tile import WorkTile
from kernelwright.roofline.multiprocessors import HOPPER

#: Rows of x that a producer's warp brings together.
LOAD_CHUNK_ROWS = 32
#: Load chunks of a line that a producer's warp has registers for, beside up to two consumer warpgroups and beside more.
_MOST_LOAD_CHUNKS, _MOST_OF_FEW = 10, 16
#: Consumer warpgroups of a block at most, of 128 threads each, beside its producers.
_MOST_WARPGROUPS = 7
#: Products of a work tile at most: they are all written out.
_MOST_PRODUCTS = 256
#: Multiprocessors that strips are to keep busy, and strips of one at most, where there are fewer planes.
_PROCESSORS, _MOST_WAVES = HOPPER.count, 16
#: Lines' worth of time that a block spends on a strip beside its lines.
_STRIP_LINES = 2


@dataclass(frozen=True)
class RowBuffered(WorkTile):
    """Numbers of a contraction under a tiling whose core is "row_buffered". Raises ValueError where it has no room.

    ``rows`` of the tiling are positions of a work tile, ``columns`` its output channels, ``stages`` lines in the ring,
    ``pingpong`` consumer warpgroups.
    """

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        tiling = self.tiling
        if not suits(self.kernel) or tiling.columns not in self.possible_channels(self.kernel) \
                or not 0 < tiling.pingpong <= _MOST_WARPGROUPS or tiling.pingpong % self.channel_blocks \
                or tiling.depth != self.needed_depth or not tiling.converts_left or tiling.promote:
            raise ValueError(f"no strips of {tiling}")
        if not self.window_lines < tiling.stages <= 32 or len(self.products) * self.passes > _MOST_PRODUCTS:
            raise ValueError(f"no strips with a window of so many lines or products: {tiling}")
        if self.brought > self._most_brought:
            raise ValueError(f"no strips with so much in a line of x: {tiling}")
        if self.line_work_tiles > tiling.pingpong and tiling.stages < self.line_span:
            # A consumer warpgroup that ends a work tile's windows comes back to their first lines, which others cannot
            # replace before.
            raise ValueError(f"no strips whose ring has less than windows, of which a warpgroup has several: {tiling}")
        if not tells_lines_apart(self):
            raise ValueError(f"no strips of which a warpgroup skips more lines than the ring has: {tiling}")
        if tiling.sector_aligned and not (shares_sectors(self.kernel) and self._follow):
            raise ValueError(f"no strips whose lines share sectors of memory: {tiling}")
        if self.strips >= 2**31 - 2**20:
            raise ValueError(f"no strips that 31 bits do not count: {tiling}")
        if self.shared_bytes > HOPPER.block_bytes:
            raise ValueError(f"{self.shared_bytes} bytes of shared memory do not fit a block: {tiling}")

    @property
    def segments(self) -> int:
        """Work tiles of a line of the output, or of stacked ones, and of the channels of a work tile."""
        return -(-self.pooled // self.tiling.rows)

    @cached_property
    def across(self) -> int:
        """Strips beside each other: one of whole lines, or one of each segment where whole lines are too much."""
        return 1 if self._bytes(1) <= HOPPER.block_bytes and self._brought(1) <= self._most_brought else self.segments

    @property
    def _most_brought(self) -> int:
        return 4 * (_MOST_OF_FEW if self.tiling.pingpong <= 2 else _MOST_LOAD_CHUNKS)

    @property
    def least_positions(self) -> int:
        """Positions that every work tile has."""
        return self.pooled - (self.segments - 1) * self.tiling.rows

    @property
    def line_work_tiles(self) -> int:
        """Work tiles of a line of a strip."""
        return self.segments // self.across * self.channel_blocks

    @property
    def _follow(self) -> bool:
        """Whether work tiles follow each other in memory in the order in which consumer warpgroups take them, each
        beyond a sector."""
        ordered = self.segments == 1 or (self.across == 1 and self.stacked == 1)
        return ordered and self.least_positions >= 2 * SECTOR

    @property
    def line_rows(self) -> int:
        """Rows of a line in shared memory, all input phases."""
        return self.positions.in_stride * self.phase_rows

    @cached_property
    def phase_rows(self) -> int:
        """Rows of every ``in_stride``-th position of x, which lie one after the other; behind the last tap one more,
        which zeros of w meet."""
        return self._rows(self.across)

    def _rows(self, across: int) -> int:
        reach = self.reach // self.positions.in_stride
        return -(-(self.segments // across * self.tiling.rows + reach + 1) // CHUNK) * CHUNK

    def row_of(self, offset: int) -> int:
        """The row of the first position's tap."""
        phase, row = (offset + self.lead) % self.positions.in_stride, (offset + self.lead) // self.positions.in_stride
        return phase * self.phase_rows + row

    @property
    def term_rows(self) -> int:
        """Rows of a line of x, all planes and chunks, of one term."""
        return len(self.planes) * self.chunks * self.line_rows

    @property
    def finished(self) -> int:
        """Barriers of finished units, the lines of work tiles: more than can be finished before every producer has seen
        the first."""
        return 2 * self.tiling.stages * self.line_work_tiles * self.kernel.pool_lines

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: w, the ring, barriers, of each slot and producer's warp the work tiles that it has to
        wait for, and results of channels that are reduced."""
        return self._bytes(self.across)

    def _bytes(self, across: int) -> int:
        stages, work_tiles = self.tiling.stages, self.segments // across * self.channel_blocks
        rows = self.positions.in_stride * self._rows(across)
        slot = self.terms * len(self.planes) * self.chunks * rows * ROW_BYTES
        barriers = stages * (1 + 2 * work_tiles * self.kernel.pool_lines) + self.tiling.pingpong
        return self.weight_bytes + stages * slot + 8 * barriers + 4 * 4 * stages + self.results_bytes + self.ends_bytes

    @cached_property
    def parts(self) -> int:
        """Strips of a plane."""
        return parts_of(self)

    @property
    def strip_lines(self) -> int:
        """Lines of a strip; the last one of a plane may have fewer."""
        return -(-self.lines // self.parts)

    @property
    def strips(self) -> int:
        """All strips."""
        return self.images * self.across * self.parts

    @property
    def partial_results(self) -> int:
        """Partial results of a total, of one n and output channel: one of each strip, of each consumer warpgroup that
        has it, and of each of the lines that it has stacked."""
        each = self.tiling.pingpong // self.channel_blocks * self.stacked
        return self.outer_positions * self.across * self.parts * each

    @property
    def partial_slots(self) -> int:
        """Places of partial results of reductions over positions: see `Geometry.places`."""
        return self.kernel.batch * self.partial_results

    @property
    def row_load_chunks(self) -> int:
        """Runs of rows of a line that a warp brings: of whole lines those where x is."""
        return self._row_load_chunks(self.across)

    def _row_load_chunks(self, across: int) -> int:
        stride = self.positions.in_stride
        rows = stride * (self.tiling.rows - 1) + 1 + self.reach if across > 1 else \
            min(self.positions.in_size, stride * self._rows(across) - self.lead)
        return -(-rows // LOAD_CHUNK_ROWS)

    @property
    def brought(self) -> int:
        """Load chunks of 32 rows and 8 channels of a line of x, of all planes, which the warps of producers share."""
        return self._brought(self.across)

    def _brought(self, across: int) -> int:
        return len(self.planes) * self.brought_chunks * self._row_load_chunks(across)


def parts_of(numbers: RowBuffered) -> int:
    """Strips of a plane: as many as keep multiprocessors equally busy, each with a work tile for every consumer
    warpgroup."""
    images, lines, step = numbers.images * numbers.across, numbers.lines, numbers.line_stride
    least = -(-numbers.tiling.pingpong // numbers.line_work_tiles)

    def cost(parts: int) -> float:
        each = -(-lines // parts)
        return -(-images * parts // _PROCESSORS) * (each + (numbers.line_span - step) / step + _STRIP_LINES)

    def last(parts: int) -> int:
        return lines - (parts - 1) * -(-lines // parts)

    most = min(lines, max(1, _MOST_WAVES * _PROCESSORS // images))
    return min((p for p in range(1, most + 1) if p == 1 or last(p) >= least), key=cost)


def tells_lines_apart(numbers: RowBuffered) -> bool:
    """Whether a consumer warpgroup that waits for a line knows that the one before it in its slot has been there, as a
    barrier has two phases: it has seen one that was brought later, or nothing has been brought twice yet."""
    last, stride = numbers.lines - (numbers.parts - 1) * numbers.strip_lines, numbers.line_stride
    stages, warpgroups, lines_each = numbers.tiling.stages, numbers.tiling.pingpong, numbers.kernel.pool_lines
    seen = numbers.window_lines - 1 + stride // lines_each * (lines_each - 1)
    for counts in ((numbers.strip_lines,), (last,), (numbers.strip_lines, last)):
        begins, line = [], 0
        for strip in range(2 * warpgroups + 2):
            count = min(counts[strip % len(counts)], 2 * warpgroups)
            begins += [line + i * stride for i in range(count) for _ in range(numbers.line_work_tiles)]
            line += (count - 1) * stride + numbers.line_span
        if begins[:warpgroups][-1] >= stages \
                or any(b - a > stages + seen for a, b in zip(begins, begins[warpgroups:], strict=False)):
            return False
    return True
