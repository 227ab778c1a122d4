"""Tilings for wgmma worth a thought: every kind of block, in the depths, stages and ways to store that make sense.

What does not fit a block is among them; `search` orders the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from kernelwright.codegen.cuda.gemm.epilogue.kept_values import LIGHT
from kernelwright.codegen.cuda.gemm.epilogue.store import in_pairs
from kernelwright.codegen.cuda.gemm.epilogue.store_aligned import stores_aligned
from kernelwright.codegen.cuda.gemm.epilogue.store_from_registers import stores_fragments
from kernelwright.codegen.cuda.gemm.epilogue.store_overlapped import least_overlap, stores_densely
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK, has_two_phases
from kernelwright.codegen.cuda.gemm.points import ordinary_stores
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry, suits_two_taps
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, walk
from kernelwright.roofline.multiprocessors import HOPPER

#: Sums are promoted after so many channels, a power of two from 32 to 128, and at most the terms over _TERMS_EACH. On
#: an H200 a sum of positive terms is short by 2e-7 of itself after 128 channels, once what is usually lost is made up
#: for (`precision.truncation_bias`); cuBLAS's was off by 4.3e-7 of 1024 terms, by 0.6 to 1.2e-6 of 8192, and by
#: 1.9e-7 of 524288, which it seems to cut into many: that is what the last number is for. 256 channels were as accurate
#: as cuBLAS, too, but no faster in the tilings that are chosen (0.64 ms, both, for 4096 x 4096 x 4096).
_PROMOTED, _TERMS_EACH, _CUT = (32, 64, 128), 12, 1 << 16
#: Input channels times runs up to which blocks read x as it lies in memory: of 64 and 3 an H200 took as long as with
#: packing (0.66 ms, a mean behind them) or longer (0.85, not 0.76 ms), the first-level cache at its limit; of 8 and 3
#: 1.06, not 1.24 ms.
_MOST_CONVERTED = 96
_MOST_STAGES = 12
#: Elements of x from which a core packs it itself, where it does not convert it in the mainloop: of fewer packing is
#: soon done.
_LEAST_PACKED = 1 << 21
#: Channels of a step of tilings that promote the sums of each (`mainloop.sm90.steps`), one of which is proposed
#: beside those that promote less often: a library's sums may be as short (cuDNN's of 5x5x5 taps of 32 channels were off
#: by 1.3e-7, and no kernel on tensor cores that promotes after 128 channels was as accurate).
FINE = 16
#: Columns up to which four consumer warpgroups of 128 rows have registers.
_FEW = 32
_COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def candidates(kernel: Contraction) -> Iterator[Tiling]:
    """Tilings worth a thought; what does not fit a block is among them."""
    widest = min((c for c in _COLUMNS if c >= kernel.out_channels), default=_COLUMNS[-1])
    deepest = max(16, min(64, -(-kernel.in_channels // 16) * 16))
    depths = [*([CHUNK] if suits_two_taps(kernel) else []), *(d for d in (16, 32, 64) if d <= deepest)]
    steps_of_stores = {abs(store.index.strides[-1]) for store in ordinary_stores(kernel)[:1]}
    neighbours = has_two_phases(kernel) and (bool(kernel.pools) or steps_of_stores <= {1})
    sectors, converts = _whole_sectors(kernel), _may_convert_in_mainloop(kernel)
    packs = not converts and _may_pack(kernel)
    for columns in (c for c in _COLUMNS if c == widest or 64 <= c < widest):
        for depth in depths:
            # A pair of taps counts as two: of the 16 channels of one, up to 8 are no zeros.
            counted = 2 * 16 if depth == CHUNK else depth
            promote = -(-_promoted(kernel) // counted) if kernel.scheme == "fp16x3" else 0
            stages = _stages(kernel, depth)
            promotes = (promote, 1) if kernel.axes and depth == FINE and promote > 2 else (promote,)
            many = ((128, 4),) * (columns <= _FEW and is_long(kernel))
            for rows, warpgroups in ((64, 1), (64, 2), (64, 3), (128, 1), (128, 2), (128, 3), *many, (256, 1)):
                for cluster in (1, 2):
                    for count, often in product(stages, promotes):
                        tiling = Tiling("wgmma", rows, columns, depth, count, cluster, often, warpgroups)
                        for found in _variants(kernel, tiling, sectors, neighbours=neighbours):
                            if found.from_registers and warpgroups == 3 and FINE < deepest <= depth:
                                continue  # of half of the channels a step is faster: 0.89 and 0.96 ms, 0.75 and 0.80
                            # What three consumer warpgroups of both phases leave of registers is not enough: ptxas
                            # spills. Nor is what the places of a thread's own rows do for those who read x as it lies;
                            # three consumer warpgroups that add sums to others do so between products, which then wait
                            # for each other.
                            full = warpgroups == 3 and found.parities == 2 and not found.overlap
                            few = full or (found.from_registers and found.parities == 2)
                            every = [found]
                            if converts and not few and not (warpgroups == 3 and (kernel.reductions or often)):
                                every.append(replace(found, converts_left=True))
                            if packs and found.split_k == 1 and (kernel.reductions or not full):
                                every.append(replace(found, packs_concurrently=True))
                            yield from every
                            if kernel.reductions and kernel.axes and found.split_k == 1:
                                yield from (replace(tiling, from_registers=True) for tiling in every)


def _variants(kernel: Contraction, tiling: Tiling, sectors: list[dict[str, Any]], *, neighbours: bool
              ) -> Iterator[Tiling]:
    """A tiling, and where they make sense with whole sectors, both phases of the last axis, parts of the steps."""
    if 1 < tiling.pingpong < 4 and tiling.rows <= 2 * SUBTILE_ROWS:
        for changes in sectors:
            yield replace(tiling, **changes)
    # More than two consumer warpgroups are for epilogues that take longer than their products.
    if neighbours and (tiling.pingpong < 3 or tiling.rows == SUBTILE_ROWS or kernel.reductions):
        yield replace(tiling, parities=2)
    if tiling.pingpong > 2 and not is_long(kernel):
        return
    yield tiling
    if tiling.pingpong == 1 and (split := _split(kernel, tiling)) > 1:
        yield replace(tiling, split_k=split)


def _whole_sectors(kernel: Contraction) -> list[dict[str, int]]:
    """What makes tilings store whole sectors: output phases of a tile, and rows that it shares with the next, or warps
    that begin at sectors, or lines that do among rows, too. Where a thread takes two neighbours, warps that begin at
    sectors gain nothing (H200: 0.75 and 0.73 ms of lines of 126)."""
    found = []
    for phases in (1, 2) if has_two_phases(kernel) else (1,):
        geometry = Geometry(kernel, Tiling("wgmma", SUBTILE_ROWS, 64, 16, 2, parities=phases))
        if stores_densely(geometry) and 4 * least_overlap(geometry) <= SUBTILE_ROWS:
            found.append({"parities": phases, "overlap": least_overlap(geometry)})
        elif stores_aligned(geometry) and not in_pairs(geometry):
            found.append({"parities": phases, "sector_aligned": True})
        if stores_fragments(kernel, phases):
            found.append({"parities": phases, "from_registers": True})
    return found


def _may_convert_in_mainloop(kernel: Contraction) -> bool:
    """Whether blocks may as well read x as it lies in memory: for each run of a tile's rows once more."""
    if kernel.is_matrix:
        return False
    classes = Geometry(kernel, Tiling("wgmma", SUBTILE_ROWS, 64, 16, 2)).classes
    return kernel.in_channels * max((len(group.runs) for group in classes), default=1) <= _MOST_CONVERTED


def _may_pack(kernel: Contraction) -> bool:
    """Whether blocks may as well pack x: of a convolution with much of it, whose epilogue leaves registers for that.
    With two reductions of channels, or three reductions over positions, ptxas spills."""
    large = not kernel.is_matrix and prod(kernel.left_domain) >= _LEAST_PACKED
    return large and len(kernel.reductions) < 2 and len(kernel.position_reductions) < 3


def _stages(kernel: Contraction, depth: int) -> list[int]:
    """Numbers of stages, among them that of a tile's steps, of any class and of all together, where these are few: then
    w may stay in them."""
    own = []
    for phases in (1, 2) if has_two_phases(kernel) else (1,):
        geometry = Geometry(kernel, Tiling("wgmma", SUBTILE_ROWS, 64, depth, 2, parities=phases))
        steps = [geometry.depths * len(group.runs) for group in geometry.classes] or [2]
        for count in (max(steps), sum(steps)):
            own += [max(2, min(_MOST_STAGES, times * count)) for times in (1, 2)]
    return list(dict.fromkeys((2, 3, 4, 6, 8, *own)))


def _promoted(kernel: Contraction) -> int:
    """Channels after which sums are promoted to float32 registers."""
    terms = kernel.in_channels * prod(len(axis.taps) for axis in kernel.axes)
    wanted = terms // _TERMS_EACH if terms < _CUT else 0
    return max((p for p in _PROMOTED if p <= wanted), default=_PROMOTED[0])


def _split(kernel: Contraction, tiling: Tiling) -> int:
    """Parts of the steps with which tiles become as many as multiprocessors; no part is shorter than 8 steps."""
    geometry = Geometry(kernel, tiling)
    tiles = kernel.groups * len(geometry.classes) * prod(geometry.blocks)
    steps = geometry.depths * min(len(group.runs) for group in geometry.classes)
    return min(HOPPER.count // tiles, steps // 8) if tiles else 1


def is_long(kernel: Contraction) -> bool:
    """Whether what a kernel stores of each position takes many instructions: then more consumer warpgroups than two are
    of use."""
    stores = () if kernel.reductions or kernel.pools else ordinary_stores(kernel)
    return any(isinstance(part, Apply) and part.function not in LIGHT for store in stores
               for part in walk(store.expression))


def is_fine(tiling: Tiling) -> bool:
    """Whether a tiling promotes the sums of every step of 16 channels, where more are usual."""
    return tiling.depth == FINE and tiling.promote == 1
