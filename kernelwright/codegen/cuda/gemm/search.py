"""Tilings of a contraction on tensor cores, best guess first.

Those for wgmma are ordered by the guess of `cost`. Measurement chooses among the first few.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest

from kernelwright.codegen.cuda.gemm.candidates import candidates, is_fine
from kernelwright.codegen.cuda.gemm.cost import cycles, packing_cycles
from kernelwright.codegen.cuda.gemm.epilogue.column_table import table_room
from kernelwright.codegen.cuda.gemm.epilogue.positions import subtile_of_tile
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels_in_registers import folds, subtile_floats
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions import (
    distinct_expressions,
    mask_floats,
    refused_positions,
)
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_in_registers import in_registers, shared_floats
from kernelwright.codegen.cuda.gemm.epilogue.subtile import holds, subtile_columns
from kernelwright.codegen.cuda.gemm.mainloop.sm80.core import tilings_mma
from kernelwright.codegen.cuda.gemm.mainloop.sm90.steps import BLOCK_BYTES, least_bytes
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.search import predicted_milliseconds as row_buffered_milliseconds
from kernelwright.codegen.cuda.gemm.row_buffered.search import row_buffered_tilings
from kernelwright.codegen.cuda.gemm.swap_ab.problem import SwapAB
from kernelwright.codegen.cuda.gemm.swap_ab.search import cycles as swap_ab_cycles
from kernelwright.codegen.cuda.gemm.swap_ab.search import saved_cycles, swap_ab_tilings
from kernelwright.codegen.cuda.gemm.tap_folding import foldable_taps, with_folded_taps
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction

#: Tilings worth a measurement.
_MOST = 8
#: What a tiling with less shared memory may cost more, by the guess.
_LEAN = 1.6
#: The share of another guess that one has to be below to come first.
_CLEARLY = 0.85


def tilings(kernel: Contraction, core: str) -> list[Tiling]:
    """At most 8 tilings for a core ("wgmma", with those of "row_buffered" and "swap_ab", or "mma") that fit a block,
    best guess first; [] for scheme float32, and for reductions over positions that no epilogue takes. Where taps can be
    folded, tilings that do so and others in turn."""
    return list(_found(kernel, core))


@lru_cache(maxsize=512)
def _found(kernel: Contraction, core: str) -> tuple[Tiling, ...]:
    """`tilings`, once for all who ask: thousands are looked at."""
    count = foldable_taps(kernel)
    if kernel.scheme == "float32" or count == 1:
        return tuple(_tilings(kernel, core))
    # Producers would read x as often as taps are folded: 0.33 to 0.88 ms, 0.13 to 0.58 of packed x (H200, six shapes).
    fewer = [replace(tiling, folded_taps=count)
             for tiling in _tilings(with_folded_taps(kernel, count), core, converting=False)]
    buffered = [replace(tiling, folded_taps=count) for tiling in row_buffered_tilings(with_folded_taps(kernel, count))
                if core != "mma"]
    return tuple(_in_turn(buffered[:2], fewer[::2], fewer[1::2], _tilings(kernel, core))[:_MOST])


def _tilings(kernel: Contraction, core: str, *, converting: bool = True) -> list[Tiling]:
    """`tilings` that fold no taps. converting: whether producers may convert x in the mainloop."""
    if kernel.scheme == "float32":
        return []
    if core == "mma":
        return tilings_mma(kernel)
    if not kernel.axes:
        return _with_swap_ab(kernel, _tilings_of_rows(kernel, converting=converting))[:_MOST]
    return _in_turn(row_buffered_tilings(kernel) if converting else [],
                    _tilings_of_rows(kernel, converting=converting))[:_MOST]


def _with_swap_ab(kernel: Contraction, others: list[Tiling]) -> list[Tiling]:
    """Tilings of a product without a window, those that read the weight as it lies first where that promises more."""
    swapped = swap_ab_tilings(kernel)
    if not swapped or not others:
        return [*swapped, *others]
    geometry = Geometry(kernel, others[0])
    packed = cycles(geometry, _layout(geometry)) + packing_cycles(geometry) + saved_cycles(kernel)
    first = 0 if swap_ab_cycles(SwapAB(kernel, swapped[0])) < _CLEARLY * packed else 2
    return [*others[:first], *_in_turn(swapped, others[first:])]


def _tilings_of_rows(kernel: Contraction, *, converting: bool) -> list[Tiling]:
    """Those whose tiles are of rows and columns."""
    found: dict[tuple, list[tuple[float, int, Tiling]]] = {}
    for tiling in candidates(kernel):
        if least_bytes(kernel, tiling) > BLOCK_BYTES or not holds(kernel, tiling) or (tiling.converts_left
                                                                                      and not converting):
            continue
        geometry = Geometry(kernel, tiling)
        if refused_positions(geometry) or (kernel.reductions and tiling.from_registers and not folds(geometry)):
            continue
        try:
            layout = _layout(geometry)
        except ValueError:
            continue
        if layout.keeps_right and tiling.stages > layout.most_steps > 2 and not tiling.overlap:
            continue  # more of the same; with twice the stages 1.16 ms instead of 0.90 (H200, 8 to 64 channels)
        figure = cycles(geometry, layout) + packing_cycles(geometry)
        found.setdefault(_kind(tiling), []).append((figure, layout.shared_bytes, tiling))
    best = [tiling for _, _, tiling in sorted((min(group, key=_figures) for group in found.values()), key=_figures)]
    fine = [tiling for tiling in best if is_fine(tiling)][:1]
    best = [tiling for tiling in best if not is_fine(tiling)]
    many = [t for t in best if t.pingpong > 2 and t.parities == 1 and _stores(t) == "rows" and not kernel.reductions]
    best = [tiling for tiling in best if tiling not in many]
    many = _most_warpgroups([tiling for tiling in many if tiling.columns >= kernel.out_channels])
    # On an H200 tiles of two phases took 0.37 to 0.82 of the time of those of one (eight shapes). The latter are there
    # for what is not among these shapes.
    orders = ("rows", "from_registers") if kernel.reductions else (
        "overlap", "from_registers", "rows", "sector_aligned")
    taken_too = any(tiling.takes_left for tiling in best)
    one, two = (_in_turn(*(_in_turn(*(
        _two_taps_first([t for t in best if t.parities == phases and _stores(t) == stores and t.takes_left == takes],
                        found if kernel.axes else {}, few=taken_too and stores != "rows" and not takes)
        for stores in orders)) for takes in (True, False))) for phases in (1, 2))
    # Of both phases whole sectors took 0.70 to 0.93 of the time of others (four shapes, an H200), but 1.03 and 1.08 of
    # that of three consumer warpgroups where each element takes many instructions.
    rows = [tiling for tiling in two if _stores(tiling) == "rows"]
    whole = not kernel.reductions and any(_stores(tiling) in ("overlap", "from_registers") for tiling in two)
    if whole:
        two = [tiling for tiling in two if tiling not in rows]
    # Three consumer warpgroups hide what results take better than the guess knows: 0.57 ms, not 0.74 (4x4, 64 to 128
    # channels); most of all where threads store what they have (0.89 ms, 0.96 of two consumer warpgroups, 1.00 of three
    # that overlap).
    three = sorted((t for t in two if t.pingpong == 3 and not t.takes_left),
                   key=lambda t: not (t.from_registers or t.sector_aligned))
    if three and three[0].sector_aligned:  # of tanh 2.0 ms, 1.4 where warps take rows; of a quotient 2.3 and 2.9 ms
        three = [three[0], *(tiling for tiling in three if _stores(tiling) == "rows")][:2]
    else:
        three = three[:1]
    two = [*two[:2], *three, *two[2:]]
    if whole:
        others = sorted(rows, key=lambda tiling: tiling.pingpong != 3 or tiling.takes_left)
        two = [*(tiling for number, tiling in enumerate(dict.fromkeys(two)) if number < 4), *others[:1], *two[4:]]
    every = [*two[:5], *one[:1], *two[5:], *one[1:]] if two else one
    # Of few channels whose sums are promoted a tile of 256 rows took 0.88 to 1.04 of the time of two of 128 (H200, five
    # shapes), and 0.75 of that of two whose products ptxas had serialised.
    tall = [t for t in one if t.rows == 4 * SUBTILE_ROWS and t.depth == CHUNK and t.promote and not two]
    every = [*every[:3], *sorted(tall, key=lambda tiling: not tiling.takes_left)[:1], *every[3:]]
    chosen = list(dict.fromkeys([*every[:2], *many[:1], *every[2:3], *fine, *every[3:4], *many[1:2], *every[4:]]))
    first = chosen[:_MOST]
    deep = [tiling for tiling in chosen if tiling.depth > CHUNK and not is_fine(tiling)][:1]
    if not any(tiling in first for tiling in deep):  # pairs of taps are not all that is tried
        first[-1:] = deep or first[-1:]
    return first


def _most_warpgroups(many: list[Tiling]) -> list[Tiling]:
    """Of tilings of three and four consumer warpgroups one each, of 128 rows: of four, then of three, one that packs if
    there is one.

    Where each element takes many instructions they hide more: sigmoid 1.09 ms of four consumer warpgroups, 1.14 of
    three, 1.24 of two (8 to 32 channels), gelu 2.65 of three that pack, 2.98 of two (64 to 64 channels), tanh and
    sigmoid 0.71 of four, 0.73 of three, 0.78 of two (3 to 16 channels); of others two were as fast, or sums leave no
    registers (an H200).
    """
    tall = [tiling for tiling in many if tiling.rows == 2 * SUBTILE_ROWS]
    tall.sort(key=lambda tiling: (-tiling.pingpong, not tiling.packs_concurrently, tiling.cluster))
    return list({tiling.pingpong: tiling for tiling in reversed(tall)}.values())[::-1]


def _stores(tiling: Tiling) -> str:
    """How a tiling stores: the field that makes it store whole sectors of memory, wherever lines begin, or "rows"."""
    return next((name for name in ("overlap", "sector_aligned", "from_registers") if getattr(tiling, name)), "rows")


def _in_turn(*lists: list[Tiling]) -> list[Tiling]:
    """The lists, one of each at a time: which of these kinds is faster the guess does not know."""
    return [tiling for one_each in zip_longest(*lists) for tiling in one_each if tiling is not None]


def _two_taps_first(best: list[Tiling], found: dict[tuple, list[tuple[float, int, Tiling]]], few: bool) -> list[Tiling]:
    """Tilings in the order of `_ordered`, behind the first of them its kind's leanest of ``found``; those with pairs of
    taps before others, of which the first one is the fourth, or where ``few`` of the list will be tried the second."""
    two_taps, others = (_ordered([t for t in best if (t.depth == CHUNK) == paired]) for paired in (True, False))
    two_taps, others = ([*kind[:1], *(_lean(found[_kind(t)]) for t in kind[:1] if found), *kind[1:]]
                        for kind in (two_taps, others))
    before = 1 if few else 3
    return [*two_taps[:before], *others[:1], *two_taps[before:], *others[1:]]


def _kind(tiling: Tiling) -> tuple:
    """What tilings have in common that differ in stages and depth alone, but for pairs of taps."""
    return (tiling.rows, tiling.columns, tiling.cluster, tiling.pingpong, tiling.split_k > 1, tiling.parities,
            tiling.depth == CHUNK, tiling.overlap > 0, tiling.sector_aligned, tiling.from_registers,
            tiling.converts_left,
            tiling.packs_concurrently, is_fine(tiling))


def _lean(group: list[tuple[float, int, Tiling]]) -> Tiling:
    """Of those that are not much worse, the one with the least shared memory: convolutions that write much are faster
    with less of it (H200: benchmarks/notes/contractions.md), which this guess does not know."""
    least = min(cycles for cycles, _, _ in group)
    near = [entry for entry in group if entry[0] <= _LEAN * least]
    return min(near, key=lambda entry: (entry[1], entry[0]))[-1]


def _figures(entry: tuple[float, int, Tiling]) -> tuple[float, int]:
    return entry[:2]


def predicted_milliseconds(kernel: Contraction, tiling: Tiling) -> float:
    """The guess for the core of a tiling for wgmma, on an H200 at 1.75 GHz; packing is not in it. Raises ValueError
    where the tiling does not fit a block."""
    if tiling.folded_taps > 1:
        kernel, tiling = with_folded_taps(kernel, tiling.folded_taps), replace(tiling, folded_taps=1)
    if tiling.core == "row_buffered":
        return row_buffered_milliseconds(RowBuffered(kernel, tiling))
    if tiling.core == "swap_ab":
        return swap_ab_cycles(SwapAB(kernel, tiling)) / 1.75e6
    geometry = Geometry(kernel, tiling)
    return cycles(geometry, _layout(geometry)) / 1.75e6


def _layout(geometry: Geometry) -> Layout:
    """The layout with the larger of the epilogue's subtiles and tables."""
    tiling = geometry.tiling
    pitch = 72 if tiling.parities == 1 else 132
    floats = pitch * subtile_columns(geometry.kernel, tiling) * max(1, len(distinct_expressions(geometry.kernel))) \
        + mask_floats(geometry.kernel, tiling) + table_room(geometry)
    if in_registers(geometry):
        floats = shared_floats(geometry)[-1] + table_room(geometry)
    if tiling.from_registers:
        floats = table_room(geometry) + (subtile_floats(geometry) if geometry.kernel.reductions else 0)
    if tiling.overlap or tiling.sector_aligned:
        floats = (tiling.parities * tiling.rows + 4) * subtile_of_tile(geometry)[0] + table_room(geometry)
    if tiling.split_k > 1 and 4 * floats > BLOCK_BYTES:  # of the kernel that adds the parts
        raise ValueError(f"{tiling} takes {4 * floats} bytes for a subtile")
    return Layout(geometry, floats if tiling.split_k == 1 else 0)


def _ordered(best: list[Tiling]) -> list[Tiling]:
    """Different blocks first, the better number of blocks a cluster of each; third, the best one's other number."""
    kinds: dict[tuple, list[Tiling]] = {}
    for tiling in best:
        kind = tiling.rows, tiling.columns, tiling.pingpong, tiling.split_k > 1
        kinds.setdefault(kind, []).append(tiling)
    first = [group[0] for group in kinds.values()]
    others = [tiling for group in kinds.values() for tiling in group[1:]]
    return [*first[:2], *others[:1], *first[2:], *others[1:]]
