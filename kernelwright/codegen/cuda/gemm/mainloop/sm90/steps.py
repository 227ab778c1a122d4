"""What the steps of a contraction's block on wgmma bring, and the shared memory that they take.

A step brings one run of rows of x (one copy for each chunk of channels) and what is multiplied with it: the weights of
all taps of the run, or of as many as fit (`Steps.taps`). Taps whose rows overlap so share one copy of x; a run in
several tap groups copies x again for each, which is a small part of the bytes (three taps of 128 columns: a quarter).

Two output phases (``tiling.parities``): a tile has twice as many sums, of the same rows of x. The taps of a tap group
are in the order of the phases that they feed, because sums are registers, whose numbers are constants.

Where taps are paired (`tap_runs`) a tap group's taps are pairs, so that no cut parts them. The leading offset of a
descriptor of x is the distance of a pair's rows, which 14 bits hold: a run's taps are at most 64 rows apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK, MOST_TAP_PAIRS, Rows, alike
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, Geometry
from kernelwright.codegen.cuda.gemm.tap_runs import Run
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.loops.schedule import MULTIPROCESSORS
from kernelwright.plan.contraction.record import Contraction
from kernelwright.roofline.multiprocessors import HOPPER

#: Rows of one product and of a subtile of the epilogue.
PRODUCT_ROWS = 64
#: Bytes of shared memory of a block.
BLOCK_BYTES = HOPPER.block_bytes


@dataclass(frozen=True, slots=True)
class TapGroup:
    """Taps that one step serves: rows from ``place`` (phases included) on; taps as in `Run`, beyond ``place``, and what
    they are paired with.

    ``counts``: how many of them feed each output phase of the tile, in this order.
    """

    place: int
    rows: int
    taps: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    seconds: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Steps:
    """The steps of a block's tiles, from the geometry and the floats of one subtile of the epilogue."""

    geometry: Geometry
    subtile_floats: int

    @property
    def workers(self) -> int:
        """Warpgroups that multiply."""
        warpgroups = self.geometry.tiling.pingpong
        return warpgroups if warpgroups > 1 else 2 if self.geometry.tiling.rows > PRODUCT_ROWS else 1

    @property
    def products(self) -> int:
        """Products of 64 rows side by side in one warpgroup."""
        return self.geometry.tiling.rows * self.geometry.tiling.pingpong // (PRODUCT_ROWS * self.workers)

    @cached_property
    def taps(self) -> int:
        """Taps (or pairs of them) of a step at most: as many of a run as leave room for all stages."""
        longest = max((len(run.taps) for c in self.geometry.classes for run in c.runs), default=1)
        tiling = self.geometry.tiling
        most = MOST_TAP_PAIRS if self.geometry.two_taps and tiling.promote else longest
        if not self.geometry.two_taps and tiling.promote == 1 and tiling.depth == 16:
            most = 2 * tiling.parities  # that few channels are asked for where the sums of more taps are too short
        if self.geometry.two_taps and tiling.promote:
            least = alike([run.counts for c in self.geometry.classes for run in c.runs])
            if least and self.bytes_with(least) <= BLOCK_BYTES:
                return least
        for parts in range(1, longest):
            taps = -(-longest // parts)
            if taps <= most and self.bytes_with(taps) <= BLOCK_BYTES:
                return taps
        return 1

    def bytes_with(self, taps: int) -> int:
        """Bytes of shared memory of a block with so many taps a step."""
        tiling = self.geometry.tiling
        stage = (self.chunk_lines * self._pitch(taps) + taps * self.tap_lines * tiling.columns) * ROW_BYTES
        return tiling.stages * (stage + 16) + 16 * (tiling.pingpong - 1) + 4 * self.subtile_floats * self.workers

    def _pitch(self, taps: int) -> int:
        reach = _longest_reach(self.geometry.canonical, taps)
        return 8 if reach is None else -(-(self.geometry.tiling.rows + reach) // 8) * 8

    @property
    def chunk_lines(self) -> int:
        """Chunks of a step's rows, of all terms."""
        return self.geometry.terms * self.geometry.tiling.depth // CHUNK

    @property
    def tap_lines(self) -> int:
        """Chunks of w that a step has of a tap, or of a pair of them, of all terms."""
        return self.geometry.terms * self.geometry.tap_chunks

    @cached_property
    def pitch(self) -> int:
        """Rows from one chunk of x to the next in shared memory."""
        return self._pitch(self.taps)

    @property
    def left_bytes(self) -> int:
        """Bytes of a step's x."""
        return self.chunk_lines * self.pitch * ROW_BYTES

    @property
    def stage_bytes(self) -> int:
        """Bytes of a step."""
        return self.left_bytes + self.taps * self.tap_lines * self.geometry.tiling.columns * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory: stages, subtiles, barriers."""
        return self.bytes_with(self.taps)

    @cached_property
    def tap_groups(self) -> tuple[tuple[TapGroup, ...], ...]:
        """By class of output positions, what its steps serve."""
        return self.tap_groups_of(self.taps)

    def tap_groups_of(self, taps: int) -> tuple[tuple[TapGroup, ...], ...]:
        """The tap groups with at most so many taps each, of equal lengths where possible."""
        geometry = self.geometry
        return _tap_groups(geometry.canonical, taps, geometry.tiling.rows, geometry.chunks * geometry.allocated_rows)

    @property
    def keeps_right(self) -> bool:
        """Whether w is brought once and stays: a stage has the same step of every tile."""
        return self.order != ""

    @cached_property
    def order(self) -> str:
        """The order of a block's tiles with which w stays; "" where it does not, whatever the order.

        "one": all tiles are of one class of output positions. "stacked": a block goes through all classes of its rows,
        before it has others. "side by side": where all classes have equally much to multiply, and divide an H200's
        multiprocessors, blocks keep to one. "in turn": all blocks go from one class to the next, which is faster where
        channels are reduced, and slower where they are not. x comes from memory for each class, and so not as it lies.
        """
        geometry, tiling = self.geometry, self.geometry.tiling
        steps = [len(group) * geometry.depths for group in self.tap_groups]
        alone = geometry.kernel.groups == geometry.blocks[1] == tiling.split_k == 1
        if not alone or not all(steps) or not steps:
            return ""
        if tiling.stages % sum(steps) == 0:
            return "stacked" if len(steps) > 1 else "one"
        evenly = MULTIPROCESSORS // tiling.cluster % len(steps) == 0
        alike = evenly and len({tuple(sorted(len(tap_group.taps) for tap_group in group))
                                for group in self.tap_groups}) == 1
        if any(tiling.stages % count for count in steps):
            return ""
        reduces = geometry.kernel.reductions and not tiling.converts_left
        return "side by side" if alike else "in turn" if reduces else ""

    @property
    def steps(self) -> int:
        """Steps of a tile of the first class of output positions."""
        return len(self.tap_groups[0]) * self.geometry.depths

    @property
    def most_steps(self) -> int:
        """Steps of a tile at most, or of those of all classes where a block goes through them."""
        steps = [len(group) * self.geometry.depths for group in self.tap_groups]
        return sum(steps) if self.order == "stacked" else max(steps)

    @property
    def complete(self) -> bool:
        """Whether every tap group feeds all output phases of a tile."""
        return all(all(tap_group.counts) for group in self.tap_groups for tap_group in group)

    @property
    def always_steps(self) -> bool:
        """Whether no tile, or part of one, is without steps."""
        least = min((len(group) for group in self.tap_groups), default=0)
        return least * self.geometry.depths >= self.geometry.tiling.split_k


def least_bytes(kernel: Contraction, tiling: Tiling) -> int:
    """Bytes of shared memory that stages take at the least, of one tap each: what tells most tilings that do not fit a
    block before anything else is known of them."""
    rows = Rows(kernel, tiling)
    lines = tiling.depth // CHUNK * tiling.rows + rows.tap_chunks * tiling.columns
    return tiling.stages * rows.terms * lines * ROW_BYTES


def _parts(run: Run, taps: int) -> list[tuple[int, int]]:
    """Where the parts of a run of at most so many taps begin and end."""
    parts = -(-len(run.taps) // taps)
    return list(pairwise(len(run.taps) * i // parts for i in range(parts + 1)))


# Tilings by the hundred have the same ones, which are found once.


@lru_cache(maxsize=1024)
def _longest_reach(rows: Rows, taps: int) -> int | None:
    """The rows that the taps of a tap group are apart at most; None where there are no tap groups."""
    return max((max(run.reaches[begin:end]) - run.taps[begin][0] for group in rows.classes for run in group.runs
                for begin, end in _parts(run, taps)), default=None)


@lru_cache(maxsize=1024)
def _tap_groups(rows: Rows, taps: int, tile_rows: int, phase_rows: int) -> tuple[tuple[TapGroup, ...], ...]:
    """Tap groups by class. tile_rows: of a tile. phase_rows: rows of x from one input phase to the next."""
    result = []
    for group in rows.classes:
        tap_groups = []
        for run in group.runs:
            for begin, end in _parts(run, taps):
                first, last = run.taps[begin][0], max(run.reaches[begin:end])
                feeds = run.feeds[begin:end]
                order = sorted(range(begin, end), key=run.feeds.__getitem__)
                part = tuple((run.taps[i][0] - first, run.taps[i][1]) for i in order)
                seconds = tuple(run.seconds[i] for i in order) if run.seconds else ()
                counts = tuple(feeds.count(phase) for phase in range(rows.tiling.parities))
                place = run.phase * phase_rows + run.shift + first
                tap_groups.append(TapGroup(place, tile_rows + last - first, part, counts, seconds))
        result.append(tuple(tap_groups))
    return tuple(result)
