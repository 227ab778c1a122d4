"""Tilings of a matrix product whose weight is read into registers, best guess first, and what they are guessed to
take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import ceil, prod

from kernelwright.codegen.cuda.gemm.cost import packing_cycles
from kernelwright.codegen.cuda.gemm.epilogue.column_table import table_room
from kernelwright.codegen.cuda.gemm.epilogue.subtile import holds, subtile_columns
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS
from kernelwright.codegen.cuda.gemm.swap_ab.problem import ROWS, SwapAB
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.roofline.multiprocessors import HOPPER

#: Tilings to try.
_MOST = 4
#: Warpgroups that multiply; stages at most, and rows of all stages where x comes as it lies (of 128 rows three stages
#: took 1.02 of the time of two, of 64 rows two 1.02 of that of four, H100); steps of a part of a tile at least.
_WORKERS, _MOST_STAGES, _CONVERTED_ROWS, _LEAST_STEPS = (2, 4, 1), 6, 256, 4
#: The share of the tensor cores' multiply-adds that is taken to be reached.
_REACHED = 0.85
#: Instructions of a warp that splits its part of w, and for each position; cycles from asking for w to having split it;
#: cycles of a position of x that comes as it lies (H100: 3,400 of 128); of a tile beside its steps, and of a further
#: kernel.
_SPLIT, _ADD, _LATENCY, _CONVERT, _TILE, _LAUNCH = 300, 0.5, 1300, 27, 2000, 5000
#: Floats of a subtile for each of its columns.
_PITCH = 72


def swap_ab_tilings(kernel: Contraction) -> list[Tiling]:
    """Tilings whose products have output channels as rows; [] where the weight has to be packed."""
    best: dict[tuple[int, bool], tuple[float, Tiling]] = {}
    for numbers in _candidates(kernel):
        figure, kind = cycles(numbers), (numbers.tiling.columns, numbers.tiling.converts_left)
        if kind not in best or figure < best[kind][0]:
            best[kind] = figure, numbers.tiling
    return [tiling for _, tiling in sorted(best.values(), key=lambda entry: entry[0])][:_MOST]


def _candidates(kernel: Contraction) -> Iterator[SwapAB]:
    """All that fit a block, with as many stages as there is room for."""
    rows = SUBTILE_ROWS if kernel.batch <= SUBTILE_ROWS else 2 * SUBTILE_ROWS
    for workers in _WORKERS:
        with suppress(ValueError):
            one = SwapAB(kernel, SwapAB.tiling_of(rows, workers * ROWS, 2))
            waves = {count * HOPPER.count // max(1, one.works) for count in (1, 2)}
            splits = sorted({1, *(s for s in waves if 1 < s <= one.depths // _LEAST_STEPS)})
            for split, converts_left in product(splits, (False, True)):
                found = _with_most_stages(replace(one.tiling, split_k=split, converts_left=converts_left), kernel)
                if found is not None:
                    yield found


def _with_most_stages(tiling: Tiling, kernel: Contraction) -> SwapAB | None:
    for stages in range(_CONVERTED_ROWS // tiling.rows if tiling.converts_left else _MOST_STAGES, 1, -1):
        with suppress(ValueError):
            numbers = SwapAB(kernel, replace(tiling, stages=stages))
            width = subtile_columns(kernel, numbers.tiling)
            if width % ROWS or not holds(kernel, numbers.tiling):
                return None
            subtiles = tiling.rows // SUBTILE_ROWS * (tiling.columns // width)
            numbers.shared_bytes(4 * subtiles * (_PITCH * width + table_room(numbers)))
            return numbers
    return None


def cycles(numbers: SwapAB) -> float:
    """The guess for the core on one multiprocessor, and for what packs x, where it does not come as it lies: of a step
    the longest of what tensor cores, L2, memory and the schedulers take, and of the way from asking for w to its
    products."""
    tiling, workers = numbers.tiling, numbers.workers
    tensor = workers * ROWS * numbers.positions * tiling.depth * (3 if numbers.terms == 2 else 1)
    weight = 4 * tiling.columns * tiling.depth
    floats = 4 * numbers.positions * tiling.depth * tiling.converts_left
    step = max(tensor / (HOPPER.wgmma_products * _REACHED),
               (weight + (floats or numbers.stage_bytes)) / HOPPER.cache_rate,
               (weight / numbers.blocks[0] + floats / numbers.blocks[1]) / HOPPER.memory_rate,
               workers * (_SPLIT + _ADD * numbers.positions), _LATENCY,
               _CONVERT * numbers.positions * tiling.converts_left)
    waves = ceil(numbers.works / HOPPER.count)
    total = waves * (ceil(numbers.depths / tiling.split_k) * step + _TILE) + packing_cycles(numbers)
    if tiling.split_k > 1:
        moved = 2 * tiling.split_k * numbers.tiles * 4 * numbers.positions * tiling.columns
        total += moved / (HOPPER.count * HOPPER.memory_rate) + _LAUNCH
    return total


def saved_cycles(kernel: Contraction) -> float:
    """What others take for packing the weight."""
    terms = 2 if kernel.scheme == "fp16x3" else 1
    return (4 + 2 * terms) * prod(kernel.right_domain) / (HOPPER.count * HOPPER.memory_rate)
