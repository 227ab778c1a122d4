"""Tilings of a contraction on tensor cores, best guess first.

Those for wgmma are ordered by the guess of `contraction_cycles`. Measurement chooses among the first few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product, zip_longest
from math import prod

from kernelwright.codegen.contraction_geometry import SLAB_ROWS, Geometry, suits_pairs
from kernelwright.codegen.contraction_rows import CHUNK, has_two_phases
from kernelwright.codegen.cuda.contraction_cycles import PROCESSORS, cycles, packing_cycles
from kernelwright.codegen.cuda.contraction_epilogue import holds, slab_columns
from kernelwright.codegen.cuda.contraction_epilogue_aligned import stores_aligned
from kernelwright.codegen.cuda.contraction_epilogue_columns import MOST_VALUES
from kernelwright.codegen.cuda.contraction_epilogue_dense import least_overlap, stores_densely
from kernelwright.codegen.cuda.contraction_epilogue_folds import folds, slab_floats
from kernelwright.codegen.cuda.contraction_epilogue_fragments import stores_fragments
from kernelwright.codegen.cuda.contraction_epilogue_neighbours import in_pairs
from kernelwright.codegen.cuda.contraction_epilogue_registers import in_registers
from kernelwright.codegen.cuda.contraction_epilogue_runs import slab_of_tile
from kernelwright.codegen.cuda.contraction_epilogue_totals import distinct_totals, mask_floats, without_totals
from kernelwright.codegen.cuda.contraction_epilogue_warps import places
from kernelwright.codegen.cuda.contraction_mma import tilings_mma
from kernelwright.codegen.cuda.contraction_points import ordinary_stores
from kernelwright.codegen.cuda.contraction_wgmma_layout import Layout
from kernelwright.codegen.cuda.contraction_wgmma_steps import BLOCK_BYTES
from kernelwright.plan.kernels import Contraction, Tiling

#: Tilings worth a measurement.
_MOST = 8
#: Sums are promoted after so many channels, a power of two from 32 to 128, and at most the terms over _TERMS_EACH. On
#: an H200 a sum of positive terms is short by 2e-7 of itself after 128 channels, once what is usually lost is made up
#: for (`contraction_wgmma_truncation`); cuBLAS's was off by 4.3e-7 of 1024 terms, by 0.6 to 1.2e-6 of 8192, and by
#: 1.9e-7 of 524288, which it seems to cut into many: that is what the last number is for. 256 channels were as accurate
#: as cuBLAS, too, but no faster in the tilings that are chosen (0.64 ms, both, for 4096 x 4096 x 4096).
_PROMOTED, _TERMS_EACH, _CUT = (32, 64, 128), 12, 1 << 16
#: Input channels times runs up to which blocks read x as it lies in memory: of 64 and 3 an H200 took as long as with
#: packing (0.66 ms, a mean behind them) or longer (0.85, not 0.76 ms), the first-level cache at its limit; of 8 and 3
#: 1.06, not 1.24 ms.
_MOST_RAW = 96
_MOST_STAGES = 12
#: Elements of x from which a core packs it itself, where it does not read it raw: of fewer packing is soon done.
_LEAST_PACKED = 1 << 21
#: Channels of a step of tilings that promote the sums of each (`contraction_wgmma_steps`), one of which is proposed
#: beside those that promote less often: a library's sums may be as short (cuDNN's of 5x5x5 taps of 32 channels were off
#: by 1.3e-7, and no kernel on tensor cores that promotes after 128 channels was as accurate).
_FINE = 16
#: What a tiling with less shared memory may cost more, by the guess.
_LEAN = 1.6
_COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def tilings(kernel: Contraction, core: str) -> list[Tiling]:
    """At most 8 tilings for a core ("wgmma" or "mma") that fit a block, best guess first; [] for scheme float32, and
    for totals that no epilogue takes."""
    if kernel.scheme == "float32":
        return []
    if core == "mma":
        return tilings_mma(kernel)
    found: dict[tuple, list[tuple[float, int, Tiling]]] = {}
    for tiling in _candidates(kernel):
        if not holds(kernel, tiling):
            continue
        geometry = Geometry(kernel, tiling)
        if without_totals(geometry) or (kernel.reductions and tiling.fragments and not folds(geometry)):
            continue
        try:
            layout = _layout(geometry)
        except ValueError:
            continue
        if layout.keeps_right and tiling.stages > layout.steps > 2 and not tiling.overlap:
            continue  # more of the same; with twice the stages 1.16 ms instead of 0.90 (H200, 8 to 64 channels)
        figure = cycles(geometry, layout) + packing_cycles(geometry)
        found.setdefault(_kind(tiling), []).append((figure, layout.shared_bytes, tiling))
    best = [tiling for _, _, tiling in sorted((min(group, key=_figures) for group in found.values()), key=_figures)]
    fine = [tiling for tiling in best if _is_fine(tiling)][:1]
    best = [tiling for tiling in best if not _is_fine(tiling)]
    # On an H200 tiles of two phases took 0.37 to 0.82 of the time of those of one (eight shapes). The latter are there
    # for what is not among these shapes.
    orders = ("rows", "fragments") if kernel.reductions else ("overlap", "fragments", "rows", "aligned")
    taken_too = any(tiling.takes_left for tiling in best)
    one, two = (_in_turn(*(_in_turn(*(
        _pairs_first([t for t in best if t.phases == phases and _stores(t) == stores and t.takes_left == takes],
                     found if kernel.axes else {}, few=taken_too and stores != "rows" and not takes)
        for stores in orders)) for takes in (True, False))) for phases in (1, 2))
    # Of both phases whole sectors took 0.70 to 0.93 of the time of others (four shapes, an H200), but 1.03 and 1.08 of
    # that of three teams where each element takes many instructions.
    rows = [tiling for tiling in two if _stores(tiling) == "rows"]
    whole = not kernel.reductions and any(_stores(tiling) in ("overlap", "fragments") for tiling in two)
    if whole:
        two = [tiling for tiling in two if tiling not in rows]
    # Three teams hide what results take better than the guess knows: 0.57 ms, not 0.74 (4x4, 64 to 128 channels); most
    # of all where threads store what they have (0.89 ms, 0.96 of two teams, 1.00 of three that overlap).
    three = sorted((t for t in two if t.teams == 3 and not t.takes_left), key=lambda t: not (t.fragments or t.aligned))
    two = [*two[:2], *three[:1], *two[2:]]
    if whole:
        others = sorted(rows, key=lambda tiling: tiling.teams != 3 or tiling.takes_left)
        two = [*(tiling for number, tiling in enumerate(dict.fromkeys(two)) if number < 4), *others[:1], *two[4:]]
    every = [*two[:5], *one[:1], *two[5:], *one[1:]] if two else one
    return list(dict.fromkeys([*every[:3], *fine, *every[3:]]))[:_MOST]


def _stores(tiling: Tiling) -> str:
    """How a tiling stores: the field that makes it store whole sectors of memory, wherever lines begin, or "rows"."""
    return next((name for name in ("overlap", "aligned", "fragments") if getattr(tiling, name)), "rows")


def _is_fine(tiling: Tiling) -> bool:
    """Whether a tiling promotes the sums of every step of 16 channels, where more are usual."""
    return tiling.depth == _FINE and tiling.promote == 1


def _in_turn(*lists: list[Tiling]) -> list[Tiling]:
    """The lists, one of each at a time: which of these kinds is faster the guess does not know."""
    return [tiling for one_each in zip_longest(*lists) for tiling in one_each if tiling is not None]


def _pairs_first(best: list[Tiling], found: dict[tuple, list[tuple[float, int, Tiling]]], few: bool) -> list[Tiling]:
    """Tilings in the order of `_ordered`, behind the first of them its kind's leanest of ``found``; those with pairs of
    taps before others, of which the first one is the fourth, or where ``few`` of the list will be tried the second."""
    pairs, others = (_ordered([t for t in best if (t.depth == CHUNK) == paired]) for paired in (True, False))
    pairs, others = ([*kind[:1], *(_lean(found[_kind(t)]) for t in kind[:1] if found), *kind[1:]]
                     for kind in (pairs, others))
    before = 1 if few else 3
    return [*pairs[:before], *others[:1], *pairs[before:], *others[1:]]


def _kind(tiling: Tiling) -> tuple:
    """What tilings have in common that differ in stages and depth alone, but for pairs of taps."""
    return (tiling.rows, tiling.columns, tiling.cluster, tiling.teams, tiling.split > 1, tiling.phases,
            tiling.depth == CHUNK, tiling.overlap > 0, tiling.aligned, tiling.fragments, tiling.raw_left,
            tiling.packs_left, _is_fine(tiling))


def _lean(group: list[tuple[float, int, Tiling]]) -> Tiling:
    """Of those that are not much worse, the one with the least shared memory: convolutions that write much are faster
    with less of it (H200: docs/contractions.md), which this guess does not know."""
    least = min(cycles for cycles, _, _ in group)
    near = [entry for entry in group if entry[0] <= _LEAN * least]
    return min(near, key=lambda entry: (entry[1], entry[0]))[-1]


def _figures(entry: tuple[float, int, Tiling]) -> tuple[float, int]:
    return entry[:2]


def predicted_milliseconds(kernel: Contraction, tiling: Tiling) -> float:
    """The guess for the core of a tiling for wgmma, on an H200 at 1.75 GHz; packing is not in it. Raises ValueError
    where the tiling does not fit a block."""
    geometry = Geometry(kernel, tiling)
    return cycles(geometry, _layout(geometry)) / 1.75e6


def _layout(geometry: Geometry) -> Layout:
    """The layout with the larger of the epilogue's slabs and tables."""
    tiling = geometry.tiling
    pitch = 72 if tiling.phases == 1 else 132
    floats = pitch * slab_columns(geometry.kernel, tiling) * max(1, len(distinct_totals(geometry.kernel))) \
        + mask_floats(geometry.kernel, tiling) + MOST_VALUES * (tiling.columns + 1)
    if in_registers(geometry):
        floats = places(geometry)[-1] + MOST_VALUES * (tiling.columns + 1)
    if tiling.fragments:
        floats = MOST_VALUES * (tiling.columns + 1) + (slab_floats(geometry) if geometry.kernel.reductions else 0)
    if tiling.overlap or tiling.aligned:
        floats = (tiling.phases * tiling.rows + 4) * slab_of_tile(geometry)[0] + MOST_VALUES * (tiling.columns + 1)
    if tiling.split > 1 and 4 * floats > BLOCK_BYTES:  # of the kernel that adds the parts
        raise ValueError(f"{tiling} takes {4 * floats} bytes for a slab")
    return Layout(geometry, floats if tiling.split == 1 else 0)


def _ordered(best: list[Tiling]) -> list[Tiling]:
    """Different blocks first, the better number of blocks a cluster of each; third, the best one's other number."""
    kinds: dict[tuple, list[Tiling]] = {}
    for tiling in best:
        kind = tiling.rows, tiling.columns, tiling.teams, tiling.split > 1
        kinds.setdefault(kind, []).append(tiling)
    first = [group[0] for group in kinds.values()]
    others = [tiling for group in kinds.values() for tiling in group[1:]]
    return [*first[:2], *others[:1], *first[2:], *others[1:]]


def _candidates(kernel: Contraction) -> Iterator[Tiling]:
    """Tilings worth a thought; what does not fit a block is among them."""
    widest = min((c for c in _COLUMNS if c >= kernel.out_channels), default=_COLUMNS[-1])
    deepest = max(16, min(64, -(-kernel.in_channels // 16) * 16))
    depths = [*([CHUNK] if suits_pairs(kernel) else []), *(d for d in (16, 32, 64) if d <= deepest)]
    steps_of_stores = {abs(store.index.strides[-1]) for store in ordinary_stores(kernel)[:1]}
    neighbours = has_two_phases(kernel) and (bool(kernel.pools) or steps_of_stores <= {1})
    sectors, raw = _whole_sectors(kernel), _may_stay_raw(kernel)
    packs = not raw and _may_pack(kernel)
    for columns in (c for c in _COLUMNS if c == widest or 64 <= c < widest):
        for depth in depths:
            # A pair of taps counts as two: of the 16 channels of one, up to 8 are no zeros.
            counted = 2 * 16 if depth == CHUNK else depth
            promote = -(-_promoted(kernel) // counted) if kernel.scheme == "fp16x3" else 0
            steps = _steps(kernel, depth)
            promotes = (promote, 1) if kernel.axes and depth == _FINE and promote > 2 else (promote,)
            for rows, teams in ((64, 1), (64, 2), (64, 3), (128, 1), (128, 2), (128, 3), (256, 1)):
                for cluster in (1, 2):
                    for stages, often in product(dict.fromkeys(
                            (2, 3, 4, 6, 8, steps, min(_MOST_STAGES, 2 * steps))), promotes):
                        tiling = Tiling("wgmma", rows, columns, depth, stages, cluster, often, teams)
                        for found in _variants(kernel, tiling, sectors, neighbours=neighbours):
                            if found.fragments and teams == 3 and _FINE < deepest <= depth:
                                continue  # of half of the channels a step is faster: 0.89 and 0.96 ms, 0.75 and 0.80
                            # What three teams of both phases leave of registers is not enough: ptxas spills. Nor is
                            # what the places of a thread's own rows do for those who read x as it lies.
                            full = teams == 3 and found.phases == 2 and not found.overlap
                            few = full or (found.fragments and found.phases == 2)
                            every = [found]
                            if raw and not few and not (kernel.reductions and teams == 3):
                                every.append(replace(found, raw_left=True))
                            if packs and found.split == 1 and (kernel.reductions or not full):
                                every.append(replace(found, packs_left=True))
                            yield from every
                            if kernel.reductions and kernel.axes and found.split == 1:
                                yield from (replace(tiling, fragments=True) for tiling in every)


def _variants(kernel: Contraction, tiling: Tiling, sectors: list[dict[str, int]], *, neighbours: bool
              ) -> Iterator[Tiling]:
    """A tiling, and where they make sense with whole sectors, both phases of the last axis, parts of the steps."""
    if tiling.teams > 1 and tiling.rows <= 2 * SLAB_ROWS:
        for changes in sectors:
            yield replace(tiling, **changes)
    # More than two teams are for epilogues that take longer than their products.
    if neighbours and (tiling.teams < 3 or tiling.rows == SLAB_ROWS or kernel.reductions):
        yield replace(tiling, phases=2)
    if tiling.teams == 3:
        return
    yield tiling
    if tiling.teams == 1 and (split := _split(kernel, tiling)) > 1:
        yield replace(tiling, split=split)


def _whole_sectors(kernel: Contraction) -> list[dict[str, int]]:
    """What makes tilings store whole sectors: output phases of a tile, and rows that it shares with the next, or warps
    that begin at sectors, or lines that do among rows, too. Where a thread takes two neighbours, warps that begin at
    sectors gain nothing (H200: 0.75 and 0.73 ms of lines of 126)."""
    found = []
    for phases in (1, 2) if has_two_phases(kernel) else (1,):
        geometry = Geometry(kernel, Tiling("wgmma", SLAB_ROWS, 64, 16, 2, phases=phases))
        if stores_densely(geometry) and 4 * least_overlap(geometry) <= SLAB_ROWS:
            found.append({"phases": phases, "overlap": least_overlap(geometry)})
        elif stores_aligned(geometry) and not in_pairs(geometry):
            found.append({"phases": phases, "aligned": True})
        if stores_fragments(kernel, phases):
            found.append({"phases": phases, "fragments": True})
    return found


def _may_stay_raw(kernel: Contraction) -> bool:
    """Whether blocks may as well read x as it lies in memory: for each run of a tile's rows once more."""
    if not kernel.axes:
        return False
    classes = Geometry(kernel, Tiling("wgmma", SLAB_ROWS, 64, 16, 2)).classes
    return kernel.in_channels * max((len(group.runs) for group in classes), default=1) <= _MOST_RAW


def _may_pack(kernel: Contraction) -> bool:
    """Whether blocks may as well pack x: of a convolution with much of it, whose epilogue leaves registers for that.
    With two reductions of channels, or three totals, ptxas spills."""
    large = bool(kernel.axes) and prod(kernel.left_domain) >= _LEAST_PACKED
    return large and len(kernel.reductions) < 2 and len(kernel.totals) < 3


def _steps(kernel: Contraction, depth: int) -> int:
    """As many stages as a tile has steps, where these are few: then w may stay in them."""
    geometry = Geometry(kernel, Tiling("wgmma", 64, 64, depth, 2))
    return max(2, min(_MOST_STAGES, geometry.depths * len(geometry.classes[0].runs) if geometry.classes else 2))


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
    return min(PROCESSORS // tiles, steps // 8) if tiles else 1
