"""How a contraction's block on mma.sync uses warps, shared memory and registers, and which tilings are worth a try.

Arithmetic of a block of R x C sums and a step of D channels, for T terms of 2 bytes and P products (T, P = 2, 3 for
fp16x3 and 1, 1 otherwise), with W warps of r x c sums::

    multiply-adds P R C D;  from L2 2 T D (R + C) bytes;  shared memory: the same written, 2 T D W (r + c) read

fp16x3, 256 x 128 with 8 warps of 64 x 64, D = 32: 3.1 M multiply-adds, 49 KB from L2, 49 + 131 KB through shared
memory. On an H200 (some 1750 MHz under load; mma.sync reaches about 62 % of the 2048 multiply-adds a cycle; L2 28
bytes, shared memory 128 bytes a cycle) that is 2480, 1750 and 1410 cycles. Tensor cores are the limit, at
132 * 1.75e9 * 2 * 1270 / 3 = 195 TFLOP/s of float32 products; 150 to 170 expected with barriers and epilogue. 128 x
128 asks L2 for a third more: 1170 of 1240 cycles. fp16 with D = 64 has the same bytes for 1650 cycles of products: L2
is the limit, at 550 TFLOP/s. An A100 (108 at 1.41 GHz, 1024 multiply-adds a cycle, all of which mma.sync reaches)
needs 3070 cycles for the first: 104 TFLOP/s at most, 85 expected.

Few rows, a large weight (`Tiling.converts_right`): 128 x 32768 x 32768 has 4.3 GB of w, which packing would read (1.0
ms at 4.3 TB/s), write (1.0) and read again (1.0), beside 275 GFLOP (1.4 ms at 195 TFLOP/s). Converted in the mainloop,
w is read once while products go on: 1.6 ms expected, which tensor cores limit; x comes from L2 for every block (2.1 GB
with 256 columns). A scale for the whole of a column of w would ask for its magnitudes first, a second reading; but sums
leave the tensor cores after every step anyway, so a step's part of a column has a scale of its own, in the multiply-add
that promotes. A column whose magnitudes leave 2^-80 to 2^80 is computed again by the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import ceil, prod

from kernelwright.codegen.cuda.gemm.epilogue.column_table import MOST_VALUES
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions import (
    distinct_expressions,
    mask_floats,
    mma_warps,
    refused_positions,
)
from kernelwright.codegen.cuda.gemm.epilogue.subtile import SUBTILE_ROWS, holds, subtile_columns
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import ordinary_stores
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, Geometry, strides_of_unpacked_right, suits_two_taps
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import loaded
from kernelwright.roofline.multiprocessors import HOPPER

#: Most sums of a warp along rows and along columns, and most columns of a block.
_WARP, _COLUMNS = 64, 256
#: Registers of a thread for sums and for fragments of x.
_SUMS_AND_FRAGMENTS = 160
#: Shared memory of a block on compute capability 9.0 and 10.0, and what the core's variables take of it.
BLOCK_BYTES, STATIC_BYTES = HOPPER.block_bytes, 64
#: With fewer than eight warps tensor cores wait more.
_FEW_WARPS = 0.7
#: Cycles of a tile beside its steps, of a step beside its products, and from asking for bytes to having them.
_TILE_CYCLES, _STEP_CYCLES, _LATENCY = 1500, 60, 1000
#: Instructions of a thread that splits a step's part of a column of w.
_SPLIT_CYCLES = 330
#: Tilings worth a measurement, and with pairs of taps among them where there are others.
_MOST, _MOST_PAIRS = 8, 6


@cache
def warps(tiling: Tiling) -> tuple[int, int]:
    """Warps of a block along rows and along columns: rectangles of at most 64 x 64 sums with the least sides.

    Raises ValueError where there are none.
    """
    count = mma_warps(tiling)
    found = []
    for down in (1, 2, 4, 8):
        across = count // down
        if across and tiling.rows % (16 * down) == 0 and tiling.columns % (16 * across) == 0:
            rows, columns = tiling.rows // down, tiling.columns // across
            if rows <= _WARP and columns <= _WARP and SUBTILE_ROWS % rows == 0:
                found.append((rows + columns, down, across))
    if not found or tiling.rows % SUBTILE_ROWS or tiling.columns > _COLUMNS or tiling.cluster != 1 \
            or tiling.pingpong != 1 or tiling.split_k != 1 or tiling.stages < 2 + tiling.converts_right:
        raise ValueError(f"no tiles of {tiling}")
    if tiling.converts_right and (tiling.depth != 32 or tiling.columns != 32 * count or not tiling.promote):
        raise ValueError(f"no threads for the columns of {tiling}")
    return min(found)[1:]


def weight_strides(kernel: Contraction) -> tuple[int, int, int]:
    """Elements of the right operand from one group to the next, from one channel, from one output channel.

    Raises ValueError where `Tiling.converts_right` cannot be: the operand is to be float32 in memory, without a window,
    its channels or output channels neighbours, and 16 bytes of them at a multiple of 16 bytes.
    """
    group, channel, column = strides_of_unpacked_right(kernel)
    apart = column if channel == 1 else channel
    if 1 not in (channel, column) or apart <= 0 or apart % 4 or group % 4 or loaded(kernel.right).index.offset % 4 \
            or (kernel.groups > 1 and kernel.out_channels % 8):
        raise ValueError("the right operand has to be packed: nothing of it lies in 16 bytes")
    return group, channel, column


def sums_per_thread(tiling: Tiling) -> int:
    """Sums that a thread holds."""
    down, across = warps(tiling)
    return tiling.rows * tiling.columns // (32 * down * across)


def least_blocks(tiling: Tiling) -> int:
    """Blocks of a multiprocessor that registers are to allow, so that about eight warps or more run at a time."""
    if sum(warps(tiling)) > 5:  # eight warps
        return 1
    sums = sums_per_thread(tiling)
    return 2 if sums > 32 else 4 if sums > 16 else 5


def chain(geometry: Geometry) -> int:
    """Steps of 16 channels that tensor cores add up before a promotion, as many as fragments of x fit in registers."""
    tiling = geometry.tiling
    fragments = tiling.rows // warps(tiling)[0] // 16 * 4 * geometry.terms
    steps = max(1, tiling.depth // 16)
    while steps > 1 and (tiling.promote == 0 or tiling.depth // 16 % steps or
                         sums_per_thread(tiling) + fragments * steps > _SUMS_AND_FRAGMENTS):
        steps -= 1
    return steps


def left_stages(geometry: Geometry) -> int:
    """Runs of x in shared memory, so that none is overwritten while a tap of it is still to come."""
    ahead = geometry.tiling.stages - 1
    most = 1
    for group in geometry.classes:
        lengths = [len(run.taps) for run in group.runs]
        for first in range(len(lengths)):
            runs, steps = 0, 0
            while steps < ahead:  # the runs that begin in `ahead` steps; they are repeated over the channels
                steps += lengths[(first + runs) % len(lengths)]
                runs += 1
            most = max(most, runs)
    return most + 1


def shared_bytes(geometry: Geometry, subtile_floats: int, column_floats: int = 0) -> int:
    """Bytes of dynamic shared memory: copies under way, later all subtiles of the block and the table of its
    columns."""
    tiling = geometry.tiling
    line = geometry.terms * tiling.depth // CHUNK * ROW_BYTES
    copies = line * left_stages(geometry) * geometry.run_rows
    if tiling.converts_right:  # float32 as in memory; terms and scales of two steps; magnitudes
        copies += tiling.columns * (tiling.stages * 4 * tiling.depth + 2 * (line + 4) + 4)
    else:
        copies += tiling.columns * tiling.stages * geometry.terms * geometry.tap_chunks * ROW_BYTES
    subtiles = tiling.rows // SUBTILE_ROWS * (tiling.columns // subtile_columns(geometry.kernel, tiling))
    return max(copies, 4 * (subtiles * subtile_floats + column_floats))


def tilings_mma(kernel: Contraction, block_bytes: int = BLOCK_BYTES) -> list[Tiling]:
    """At most 8 tilings for mma.sync, best guess for an H200 first; [] for the scheme float32. Of few channels those
    with pairs of taps (`tap_runs`) come before others.

    ``block_bytes``: shared memory that a block may have (163 KB on compute capability 8.0, 99 KB on 8.6, 8.9, 12.0).
    """
    best: dict[tuple[int, int, bool, bool], tuple[float, Tiling]] = {}
    for tiling in _candidates(kernel):
        if not holds(kernel, tiling):
            continue
        geometry = Geometry(kernel, tiling)
        if refused_positions(geometry):
            continue
        subtile = SUBTILE_ROWS * (subtile_columns(kernel, tiling) + 8) * max(1, len(distinct_expressions(kernel))) \
            + mask_floats(kernel, tiling)
        table = MOST_VALUES * (tiling.columns + 1)
        shared = STATIC_BYTES + shared_bytes(geometry, subtile, table)
        if shared > block_bytes:
            continue
        blocks = min(least_blocks(tiling), (block_bytes + HOPPER.block_reserve) // (shared + HOPPER.block_reserve))
        cycles = _packing_cycles(geometry) + _cycles(geometry, blocks)
        kind = tiling.rows, tiling.columns, tiling.converts_right, geometry.two_taps
        if kind not in best or cycles < best[kind][0]:
            best[kind] = cycles, tiling
    found = [tiling for _, tiling in sorted(best.values(), key=lambda pair: pair[0])]
    two_taps, others = ([t for t in found if (t.depth == CHUNK) == paired] for paired in (True, False))
    return [*two_taps[:_MOST_PAIRS], *others][:_MOST]


def _candidates(kernel: Contraction) -> Iterator[Tiling]:
    """Tilings that warps can share, whether or not they fit a block."""
    if kernel.scheme == "float32":
        return
    terms = 2 if kernel.scheme == "fp16x3" else 1
    deepest, two_taps = max(16, -(-kernel.in_channels // 16) * 16), suits_two_taps(kernel)
    for rows in (64, 128, 256):
        for columns in (16, 32, 48, 64, 96, 128, 256):
            depths = [d for d in (16, 32, 64) if d <= deepest and d * terms <= 64]
            for depth in [CHUNK] * two_taps + depths:
                for stages in (3, 4, 2):
                    yield from _possible(Tiling("mma", rows, columns, depth, stages, promote=terms - 1))
    with suppress(ValueError):
        weight_strides(kernel)
        for rows, columns in ((64, 128), (128, 128), (128, 256)):
            for stages in (3, 4):
                yield from _possible(Tiling("mma", rows, columns, 32, stages, promote=1, converts_right=True))


def _possible(tiling: Tiling) -> Iterator[Tiling]:
    with suppress(ValueError):
        warps(tiling)
        yield tiling


def _packing_cycles(geometry: Geometry) -> float:
    """Cycles of one multiprocessor, of all that pack, for reading operands (as float32) and writing packed ones."""
    kernel = geometry.kernel
    size = 4 * prod(kernel.left_domain) + geometry.terms * geometry.left_term_bytes
    if not geometry.tiling.converts_right:
        size += 4 * prod(kernel.right_domain) + geometry.terms * geometry.right_term_bytes
    return size / HOPPER.memory_rate / HOPPER.count


def _cycles(geometry: Geometry, blocks: int) -> float:
    """Cycles of all tiles on one multiprocessor, with so many blocks at a time at most."""
    kernel, tiling = geometry.kernel, geometry.tiling
    down, across = warps(tiling)
    tiles = kernel.groups * len(geometry.classes) * geometry.blocks[0] * geometry.blocks[1]
    waves = ceil(tiles / HOPPER.count)
    blocks = min(blocks, waves)
    # Of x, and of w and what products take of either: a pair of taps has 16 channels.
    row_bytes, channel_bytes = (2 * geometry.terms * depth for depth in (tiling.depth, max(16, tiling.depth)))
    together = tiling.rows * tiling.columns * max(16, tiling.depth) * (3 if geometry.terms == 2 else 1)
    products = together / HOPPER.mma_products
    if blocks * down * across < 8:
        products /= _FEW_WARPS
    total = 0.0
    for group in geometry.classes:
        for run in group.runs:
            taps = len(run.taps)
            weights = tiling.columns * (4 * tiling.depth if tiling.converts_right else taps * channel_bytes)
            copied = row_bytes * geometry.run_rows + weights
            through = copied + channel_bytes * taps * (across * tiling.rows + down * tiling.columns)
            splitting = 0.0
            if tiling.converts_right:  # read once more, and terms written; while other warps multiply, if any
                through += weights + tiling.columns * channel_bytes
                splitting = _SPLIT_CYCLES * down * across / 4 * (0.4 if blocks * down * across >= 8 else 1)
            fresh = weights / HOPPER.memory_rate if tiling.converts_right and geometry.blocks[0] == 1 else 0
            cycles = max(taps * products + splitting, copied / HOPPER.cache_rate, through / HOPPER.shared_rate, fresh,
                         taps * _LATENCY / (tiling.stages - 1 - tiling.converts_right) / blocks)
            total += geometry.depths * (cycles + taps * _STEP_CYCLES / blocks)
    steps = total / max(1, len(geometry.classes)) + _TILE_CYCLES / blocks
    written = 4 * min(tiling.rows, geometry.rows) * min(tiling.columns, kernel.out_channels) / kernel.pool_size
    results = written / HOPPER.memory_rate * max(1, len(ordinary_stores(kernel)))
    if blocks > 1:  # one block's results go to memory while another multiplies
        return waves * max(steps, results) + min(steps, results)
    return waves * (steps + results)
