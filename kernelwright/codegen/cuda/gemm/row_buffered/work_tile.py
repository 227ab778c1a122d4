"""What a work tile of the row-buffered implicit GEMM is: its channels, lines and positions, its window and products.

`row_buffered` has the words, and how work tiles make lines and strips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import AccumulatorLayout, wgmma_stacked
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, Geometry
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import COMPONENTS, SECTOR
from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap, in_groups

#: Rows of a product, and how many of them may be output channels.
ROWS, CHANNELS = 64, (64, 32, 16, 8)


@dataclass(frozen=True, slots=True)
class Product:
    """16 channels of a product: ``plane`` and ``line`` of the window, ``row`` of x beyond the work tile's first one,
    rows from its first half to its second, and of w for each half the chunk and the entries of the window: for each of
    the stacked lines, and each phase of positions, one, or None where these have none there."""

    plane: int
    line: int
    row: int
    apart: int
    halves: tuple[tuple[int, tuple[int | None, ...]], ...]


@dataclass(frozen=True)
class WorkTile(Geometry):
    """Numbers of a work tile under a tiling whose core is "row_buffered"."""

    @property
    def needed_depth(self) -> int:
        """Channels of w that are packed together: 8 where two taps share a product, else 16."""
        return CHUNK if self.kernel.in_channels <= CHUNK else 2 * CHUNK

    @property
    def passes(self) -> int:
        """Products of float16 terms for each of float32 operands."""
        return 3 if self.terms == 2 else 1

    @property
    def line_axis(self) -> ContractionAxis:
        """The axis along which a strip goes down."""
        return self.kernel.axes[-2]

    @property
    def positions(self) -> ContractionAxis:
        """The axis of a line's positions."""
        return self.kernel.axes[-1]

    @property
    def outer(self) -> tuple[ContractionAxis, ...]:
        """The axes of planes."""
        return self.kernel.axes[:-2]

    @property
    def all_blocks(self) -> int:
        """Blocks of output channels that a product has at once."""
        return -(-self.kernel.out_channels // self.tiling.columns)

    @property
    def folded(self) -> int:
        """Those of a work tile, one after the other: all where channels are reduced, else one."""
        return self.all_blocks if self.kernel.reductions else 1

    @property
    def channel_blocks(self) -> int:
        """Work tiles beside each other at the same positions."""
        return self.all_blocks // self.folded

    @property
    def kept_values(self) -> int:
        """Values of a position that reductions over channels keep."""
        return sum(COMPONENTS[reduction.kind] for reduction in self.kernel.reductions)

    @property
    def shared_blocks(self) -> int:
        """Blocks of 8 positions of a work tile that eight lanes can share."""
        return -(-self.tiling.rows // 64) * 8

    @property
    def results_bytes(self) -> int:
        """Bytes of shared memory in which four warps of each consumer warpgroup meet, twice: of two work tiles, one
        after the other."""
        return self.tiling.pingpong * 2 * self.kept_values * 4 * 8 * self.shared_blocks * 4

    @property
    def ends(self) -> int:
        """Work tiles whose ends are in shared memory, for those that follow: none is needed once the consumer warpgroup
        that has read it has a work tile again, or the next consumer warpgroup, where warps take ends from each other
        (stacked lines)."""
        return self.tiling.pingpong + self.channel_blocks + (self.stacked > 1) if self.tiling.sector_aligned else 0

    @property
    def ends_bytes(self) -> int:
        """Bytes of shared memory of these: 8 values of each channel, and a barrier."""
        return self.ends * (4 * SECTOR * ROWS + 8)

    @cached_property
    def layout(self) -> AccumulatorLayout:
        """Which channel, line and position of a work tile a thread's sums are of."""
        return wgmma_stacked(self.tiling.rows, self.tiling.columns, self.interleaved)

    @staticmethod
    def possible_channels(kernel: Contraction) -> list[int]:
        """How many output channels a work tile may have: whole warps of them, or half ones of two phases, and all
        phases of lines."""
        line, last = kernel.axes[-2:]
        if kernel.pool_lines > 1:
            return [ROWS]
        rows = [columns * last.out_stride for columns in CHANNELS]
        return [columns for columns, each in zip(CHANNELS, rows, strict=True)
                if 16 <= each <= ROWS and ROWS // each % line.out_stride == 0]

    @property
    def interleaved(self) -> int:
        """Output phases of a line's positions, which are rows of one product: 1 or 2."""
        return self.positions.out_stride

    @property
    def stacked(self) -> int:
        """Lines of the output whose channels are rows of one product: these are *stacked*."""
        return ROWS // (self.tiling.columns * self.interleaved)

    @cached_property
    def work_tile_line(self) -> ContractionAxis:
        """The axis of lines as a work tile has it: its output phases are the stacked lines."""
        axis = self.line_axis
        if self.kernel.pool_lines > 1:  # lines of a window come one after the other
            return replace(axis, out_stride=1, taps=tuple(tap for tap in axis.taps if tap.phase == 0))
        return in_groups(axis, self.stacked // axis.out_stride)

    @property
    def lines(self) -> int:
        """Lines of work tiles: of the output, of stacked ones, or of windows of two of them."""
        lines = self.kernel.pooled_domain[-2] if self.kernel.pools else self.line_axis.out_size
        return -(-lines // self.stacked)

    @property
    def line_stride(self) -> int:
        """Lines of x from those of a work tile to those of the next one below."""
        return self.work_tile_line.in_stride

    @property
    def pooled(self) -> int:
        """Positions of a line that whole windows have; all of them where nothing is pooled, of one phase."""
        return self.kernel.pooled_domain[-1] * self.kernel.pool_size if self.kernel.pools else \
            self.positions.out_size // self.interleaved

    @property
    def first_offset(self) -> int:
        """From a line of the output to the first line of x that it needs."""
        return min(tap.offset for tap in self.line_axis.taps)

    @property
    def line_span(self) -> int:
        """Lines of x from the first one that a work tile needs to the last."""
        if self.kernel.pool_lines > 1:
            return max(tap.offset for tap in self.line_axis.taps) - self.first_offset + 1
        return self.window_lines

    @property
    def window_lines(self) -> int:
        """The same of one line of the output, or of stacked ones."""
        return window_offsets(self)[-1] + 1

    @property
    def lead(self) -> int:
        """Rows of a line before x begins."""
        return max(0, -min(tap.offset for tap in self.positions.taps))

    @property
    def reach(self) -> int:
        """Rows from that of a position to that of its last tap."""
        return max(tap.offset for tap in self.positions.taps) + self.lead

    @cached_property
    def planes(self) -> tuple[tuple[Tap, ...], ...]:
        """Taps along the axes of planes, of each plane of the window."""
        return tuple(product(*(axis.taps for axis in self.outer)))

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The products of a work tile, of one pair of terms."""
        return products_of(self)

    @property
    def weight_bytes(self) -> int:
        """Bytes of w in shared memory."""
        taps = len(position_offsets(self))
        halves = -(-taps // 2) if self.needed_depth == CHUNK else taps * self.chunks // 2
        count = len(self.planes) * len(window_offsets(self)) * halves
        return self.terms * count * 2 * self.all_blocks * ROWS * ROW_BYTES

    @property
    def outer_positions(self) -> int:
        """Planes of the output of one n."""
        return prod(axis.out_size for axis in self.outer)

    @property
    def images(self) -> int:
        """Planes of the output."""
        return self.kernel.batch * self.outer_positions

    @property
    def line_rows(self) -> int:
        """Rows of a line in shared memory, which `RowBuffered` knows."""
        raise NotImplementedError

    def row_of(self, offset: int) -> int:
        """The row of the first position's tap, which `RowBuffered` knows."""
        raise NotImplementedError

    @property
    def brought_chunks(self) -> int:
        """Chunks of x that hold channels."""
        return -(-self.kernel.in_channels // CHUNK)


def window_offsets(numbers: WorkTile) -> list[int]:
    """Lines of x that a work tile's window has, from its first one."""
    return sorted({tap.offset - numbers.first_offset for tap in numbers.work_tile_line.taps})


def position_offsets(numbers: WorkTile) -> list[int]:
    """Positions of x that it has along lines."""
    return sorted({tap.offset for tap in numbers.positions.taps})


def products_of(numbers: WorkTile) -> tuple[Product, ...]:
    """All of them, of one pair of terms."""
    found = []
    lines = {(tap.phase, tap.offset - numbers.first_offset): tap for tap in numbers.work_tile_line.taps}
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


def _entry(numbers: WorkTile, taps: tuple[Tap, ...]) -> int:
    number = 0
    for axis, tap in zip(numbers.kernel.axes, taps, strict=True):
        number = number * axis.kernel + tap.number
    return number
