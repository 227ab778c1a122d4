"""The guess for tilings on wgmma: the time of all tiles on an H200.

Of a step, the longest of what tensor cores, shared memory and L2 need for it and of the time in which its bytes arrive;
of a tile, its steps and the way of its results to memory, beside each other where several tiles are in work at a time;
rows and columns that are computed and dropped count. Results of one output phase of the last axis fill a part of each
sector of memory that they touch, and all of it is counted; of both phases of a tile they fill it.
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_in_registers import in_registers
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.operands.prepack_parts import looked_at
from kernelwright.codegen.cuda.gemm.points import TWO_PASS, guessed, ordinary_stores
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.roofline.multiprocessors import HOPPER

#: Cycles of a tile beside its steps, of a step beside its products, and from asking L2 for bytes to having them.
_TILE_CYCLES, _STEP_CYCLES, _LATENCY = 1000, 40, 1200
#: Of a wait for products whose sums are added up then, beside the additions: no product runs meanwhile (not measured).
_WAIT_CYCLES = 100
#: Cycles of a thread's epilogue for an element (H200: 48 to 61 of three shapes, from what two consumer warpgroups
#: take), and where it takes reductions over positions from registers (10, from what one and two consumer warpgroups
#: take beyond their products; the guess allows for more).
_ELEMENT_CYCLES, _REGISTER_CYCLES = 50, 15
#: The same where threads store what they have: a guess.
_FRAGMENT_CYCLES = 20
#: The same of a pass that reduces channels, a guess from its 10 to 15 instructions, and where it is over registers,
#: from 3 to 8; and the share of these cycles in which warps issue instructions, which consumer warpgroups do in turns.
_PASS_CYCLES, _FOLD_CYCLES, _ISSUED = 25, 12, 0.5
#: What blocks of a cluster lose by waiting for each other. Cycles of a further kernel.
_CLUSTER_COST = 1.02
_LAUNCH_CYCLES = 5000
#: Cycles of a producer's warp for 32 rows and 8 channels of an x that is not packed: 90 instructions, two such warps on
#: a scheduler.
_LOAD_CHUNK_CYCLES = 500


def _spread(kernel: Contraction, tiling: Tiling) -> float:
    """Elements that go to memory for each row and column of a tile: two of two phases, and of one phase of several
    those beside it, because memory takes whole sectors (of 8 elements). Of pools one for each window."""
    stores = ordinary_stores(kernel)
    if kernel.pools:
        return tiling.parities / (kernel.pool_size * kernel.pool_lines)
    if not kernel.axes or not stores or abs(stores[0].index.strides[-1]) != 1:
        return 1
    return 2 if tiling.parities == 2 else min(8, kernel.axes[-1].out_stride)


def _element_bytes(kernel: Contraction) -> int:
    """Bytes of an element of x."""
    return 4 if kernel.scheme != "native" else 2


def packing_cycles(geometry: Geometry) -> float:
    """Cycles in which x is packed, or its scales are found, before the core begins."""
    kernel = geometry.kernel
    there = prod(kernel.left_domain) * _element_bytes(kernel)
    if not geometry.tiling.takes_left:
        moved = there + geometry.terms * geometry.left_term_bytes
    elif not geometry.scaled or geometry.splits_left:
        moved = 0
    else:
        moved = there // looked_at(prod(kernel.left_domain)) if guessed(geometry, "left") else there
    return moved / (HOPPER.count * HOPPER.memory_rate)


def _written(geometry: Geometry) -> float:
    """Bytes of a tile's results; where channels are reduced, some are stored once for all of them."""
    kernel, tiling = geometry.kernel, geometry.tiling
    columns = min(tiling.columns, kernel.out_channels)
    stored = [columns if store.index.strides[2] or not kernel.reductions else 1 for store in ordinary_stores(kernel)]
    return 4 * min(tiling.rows, geometry.rows) * sum(stored or [columns]) * _spread(kernel, tiling)


def _element_cycles(geometry: Geometry) -> float:
    """Cycles of a thread's epilogue for an element."""
    kernel, fragments = geometry.kernel, geometry.tiling.from_registers
    if fragments and not kernel.reductions:
        return _FRAGMENT_CYCLES
    passes = sum(2 if reduction.kind in TWO_PASS else 1 for reduction in kernel.reductions)
    stores = not passes or any(store.index.strides[2] for store in kernel.stores)
    return _ELEMENT_CYCLES * stores + (_FOLD_CYCLES if fragments else _PASS_CYCLES) * passes


def cycles(geometry: Geometry, layout: Layout) -> float:
    """Cycles of all tiles on one multiprocessor."""
    kernel, tiling = geometry.kernel, geometry.tiling
    products = 3 if geometry.terms == 2 else 1
    element_bytes = _element_bytes(kernel)
    half_rows = tiling.rows / 64 * products * max(16, tiling.depth) / 16  # products of 64 rows of a step's tap or pair
    filling = 0.0
    if tiling.converts_left:  # a warp waits for what it asked for before it asks for more
        waits = ceil(layout.filling.each / layout.fill_batch) * _LATENCY
        filling = (waits + layout.filling.each * _LOAD_CHUNK_CYCLES) / layout.filling.steps_at_once
    total = 0.0
    for group in layout.tap_groups:
        for tap_group in group:
            taps = len(tap_group.taps)
            columns = 0 if layout.keeps_right else taps * tiling.columns
            brought = 16 * (layout.chunk_lines * tap_group.rows + layout.tap_lines * columns)
            of_x = 16 * layout.chunk_lines * tap_group.rows
            if tiling.converts_left:
                of_x = element_bytes * min(tiling.depth, kernel.in_channels) * tap_group.rows
            asked = of_x + 16 * layout.tap_lines * columns / tiling.cluster
            read = half_rows * taps * (64 + tiling.columns) * 32
            step = max(half_rows * taps * 64 * tiling.columns * 16 / HOPPER.wgmma_products, asked / HOPPER.cache_rate,
                       (read + brought) / HOPPER.shared_rate) + _STEP_CYCLES
            # What a stage asks for as it falls empty is there when the others have been used.
            arrival = layout.blocks * (_LATENCY + asked / HOPPER.cache_rate) / (tiling.stages - 1)
            if tiling.converts_left:
                arrival = max(arrival, filling)
            total += geometry.depths * max(step, arrival) * (1.0 if tiling.cluster == 1 else _CLUSTER_COST)
    steps = total / max(1, len(geometry.classes)) / tiling.split_k + _TILE_CYCLES
    set_of_sums = layout.products * tiling.parities * tiling.columns / 2
    steps += layout.waits * (_WAIT_CYCLES + set_of_sums)
    results, element = _written(geometry) / HOPPER.memory_rate, _element_cycles(geometry)
    if in_registers(geometry):
        results, element = 0.0, _REGISTER_CYCLES
    tiles = kernel.groups * len(geometry.classes) * geometry.blocks[1] \
        * ceil(geometry.blocks[0] / tiling.cluster) * tiling.cluster * tiling.split_k
    if tiling.packs_concurrently:
        moved = prod(kernel.left_domain) * element_bytes + geometry.terms * geometry.left_term_bytes
        results += moved / tiles / HOPPER.memory_rate
    # A warpgroup's own time: products, then the epilogue, while others multiply.
    finish = tiling.rows * tiling.parities * tiling.columns / 128 * element
    alone = steps + finish
    # A block that goes through all classes of its rows has as many more of the last wave, too.
    together = len(geometry.classes) if layout.order == "stacked" else 1
    waves = ceil(tiles / together / HOPPER.count) * together
    if tiling.split_k > 1:  # sums go to memory and come back, all multiprocessors at work, and a kernel begins
        return waves * steps + 2 * geometry.partial_bytes / (HOPPER.count * HOPPER.memory_rate) + _LAUNCH_CYCLES
    if tiling.pingpong > 1 or layout.blocks == 2:
        issued = finish * _ISSUED * bool(kernel.reductions)
        return waves * max(steps, results, issued, alone / max(tiling.pingpong, layout.blocks)) + min(steps, results)
    return waves * (steps + max(results, finish / layout.workers * bool(kernel.reductions)))
