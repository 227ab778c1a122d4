"""Tilings of the row-buffered implicit GEMM, best guess first, and what they are guessed to take."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from kernelwright.codegen.cuda.gemm.candidates import is_long
from kernelwright.codegen.cuda.gemm.points import ordinary_stores
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import COMPONENTS, shares_sectors, suits
from kernelwright.codegen.cuda.gemm.row_buffered.work_tile import ROWS
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction, in_groups
from kernelwright.roofline.multiprocessors import HOPPER

#: Tilings to try at most, and in three dimensions, where x is read once for each plane of a window.
_MOST, _MOST_OF_PLANES = 4, 2
#: Positions of a work tile for whose sums three or four consumer warpgroups have registers, and two; and three or four
#: where a thread has two numbers of each position beside its sums.
_NARROW, _WIDE, _LEAST = 128, 256, 64
#: Channels up to which products take so little time that wide work tiles gain nothing (H200, 8 channels: 1.44 and 0.95
#: ms).
_FEW = 16
#: Lines of the ring at most, for each of those stacked: more were no faster (H200, 8 to 64 channels: 8 and 16).
_MOST_LINES = 8
#: Cycles of a scheduler for an element of a thread, where functions are short and long, and for a work tile.
_ELEMENT_CYCLES, _LONG_CYCLES, _WORK_TILE_CYCLES = 10, 24, 300


def row_buffered_tilings(kernel: Contraction) -> list[Tiling]:
    """Tilings of the row-buffered implicit GEMM; [] where none fits."""
    if not suits(kernel):
        return []
    last = kernel.axes[-1]
    size = kernel.pooled_domain[-1] * kernel.pool_size if kernel.pools else last.out_size // last.out_stride
    narrow, wide, least = (_positions(size, most) for most in (_NARROW, _WIDE, _LEAST))
    kept = sum(COMPONENTS[reduction.kind] for reduction in kernel.reductions)
    found = []
    for columns in _channels(kernel):
        blocks = -(-kernel.out_channels // columns)
        shapes = [(narrow, 3), (narrow, 4), (narrow, 2)] if blocks == 1 else [(narrow, blocks), (narrow, 2 * blocks)]
        if blocks == 4 or last.in_stride > 1:  # for want of registers, or of room for lines of x
            shapes.append((least, 3 if blocks == 1 else blocks))
        if kept:
            shapes = [(narrow, 2), (narrow, 3), (least, 3)] if kept == 1 else [(least, 3), (narrow, 2), (least, 4)]
        elif wide != narrow and blocks <= 2 and not kernel.pools and kernel.in_channels > _FEW:
            shapes.insert(1, (wide, 2))
        found.append([_with_most_lines(kernel, rows, columns, warpgroups) for rows, warpgroups in shapes
                      if warpgroups <= 4])
    best, *others = ([t for t in kind if t is not None] for kind in found)
    # Where lines share sectors, also with these stored once: 126 wide 0.664 for 0.722 ms, 0.260 for 0.265, 254 wide
    # 0.967 for 1.005; of planes nothing came of it (H100).
    if shares_sectors(kernel) and len(kernel.axes) == 2:
        best = [t for tiling in best for t in (tiling, _with_ends(kernel, tiling)) if t is not None]
    every = dict.fromkeys([*best[:2], *(t for kind in others for t in kind[:1]), *best[2:]])
    return list(every)[:_MOST if len(kernel.axes) == 2 else _MOST_OF_PLANES]


def _with_ends(kernel: Contraction, tiling: Tiling) -> Tiling | None:
    """The tiling whose lines share sectors of memory, if it can have them."""
    for stages in range(tiling.stages, 1, -1):
        with suppress(ValueError):
            return RowBuffered(kernel, replace(tiling, stages=stages, sector_aligned=True)).tiling
    return None


def _channels(kernel: Contraction) -> list[int]:
    """Output channels of a work tile: as many as leave the fewest rows of products empty, without more products, and
    all rows."""
    fit = RowBuffered.possible_channels(kernel)
    line, most = kernel.axes[-2], ROWS // kernel.axes[-1].out_stride

    def blocks(columns: int) -> int:
        return -(-kernel.out_channels // columns)

    def products(columns: int) -> float:
        offsets = {tap.offset for tap in in_groups(line, most // columns // line.out_stride).taps}
        return blocks(columns) * len(offsets) / (most // columns)

    if len(fit) < 2:
        return fit
    fewest = [columns for columns in fit if products(columns) <= products(fit[0])]
    best = min(fewest, key=lambda columns: (blocks(columns) * columns, -columns))
    return list(dict.fromkeys([best, fit[0]]))


def _positions(size: int, most: int) -> int:
    """Positions of the work tiles that lines of so many are cut into, of at most so many each."""
    work_tiles = -(-size // most)
    return -(-size // work_tiles // 8) * 8


def _with_most_lines(kernel: Contraction, rows: int, columns: int, warpgroups: int) -> Tiling | None:
    """The tiling whose ring has as many lines as there is room for, up to 8 for each of those stacked; whole ones if it
    can be."""
    depth, found = 8 if kernel.in_channels <= 8 else 16, []
    stacked = ROWS // (columns * kernel.axes[-1].out_stride)
    for stages in range(_MOST_LINES * stacked, 1, -1):
        tiling = Tiling("row_buffered", rows, columns, depth, stages, pingpong=warpgroups, converts_left=True)
        try:
            found.append((RowBuffered(kernel, tiling).across > 1, -stages, tiling))
        except ValueError:
            continue
    return min(found, key=lambda entry: entry[:2])[-1] if found else None


def predicted_milliseconds(numbers: RowBuffered) -> float:
    """The guess for the core on an H200 at 1.75 GHz: of a work tile the longest of what tensor cores, shared memory,
    the schedulers and memory take."""
    kernel, rows = numbers.kernel, numbers.tiling.rows
    products = numbers.passes * len(numbers.products) * kernel.pool_lines * numbers.folded
    tensor = products * max(rows / 2, (2048 + 32 * rows) / HOPPER.shared_rate)
    element = _LONG_CYCLES if is_long(kernel) or kernel.position_reductions else _ELEMENT_CYCLES
    issue = rows / 2 * kernel.pool_lines * numbers.folded * element + _WORK_TILE_CYCLES
    stored = 4 * rows * numbers.stacked * numbers.interleaved * len(ordinary_stores(kernel)) / kernel.pool_size
    if not kernel.reductions:
        stored *= min(numbers.tiling.columns, kernel.out_channels)
    brought = 4 * len(numbers.planes) * kernel.in_channels * numbers.line_stride * numbers.positions.in_size
    work_tile = max(tensor, issue, (stored + brought / numbers.line_work_tiles) / HOPPER.memory_rate)
    # A consumer warpgroup's own time: products, then the epilogue, while others multiply.
    work_tile = max(work_tile, (tensor + 2 * issue) / numbers.tiling.pingpong)
    lines = numbers.strip_lines + (numbers.line_span - 1) / numbers.line_stride
    return -(-numbers.strips // HOPPER.count) * lines * numbers.line_work_tiles * work_tile / (HOPPER.clock / 1e3)
