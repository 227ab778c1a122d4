"""How a contraction's block on wgmma uses shared memory, registers and steps.

A step brings one run of rows of x (one copy for each chunk of channels) and what is multiplied with it: the weights of
all taps of the run, or of as many as fit (`Layout.taps`). Taps whose rows overlap so share one copy of x; a run in
several pieces copies x again for each, which is a small part of the bytes (three taps of 128 columns: a quarter).

Tiles in work (``tiling.teams``): with one, two warpgroups share a tile of 128 or 256 rows and a block begins the next
tile when both are done; with more, each warpgroup has a tile of its own, and while some write their results another
multiplies. The producers bring steps in the order of tiles. A team begins a tile when the one before it has seen the
last step of its own and asked for its products, which may still be running: a barrier tells no more than whether its
last phase is over, so nobody may wait for a later one.

Two output phases (``tiling.phases``): a tile has twice as many sums, of the same rows of x. The taps of a piece are in
the order of the phases that they feed, because sums are registers, whose numbers are constants.

Where taps are paired (`contraction_runs`) a piece's taps are pairs, so that no cut parts them. The leading offset of a
descriptor of x is the distance of a pair's rows, which 14 bits hold: a run's taps are at most 64 rows apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from kernelwright.codegen.contraction_geometry import CHUNK, ROW_BYTES, Geometry
from kernelwright.codegen.cuda.contraction_wgmma_filling import ITEM_REGISTERS, Filling
from kernelwright.codegen.cuda.contraction_wgmma_stretches import FEW, MANY, ROUND, most_stretches, stretch_numbers

#: Rows of one product and of a slab of the epilogue.
PRODUCT_ROWS = 64
#: Bytes of shared memory of a block and of a multiprocessor, less what the system takes from the latter for each block.
BLOCK_BYTES, PROCESSOR_BYTES, RESERVED_BYTES = 227 * 1024, 228 * 1024, 1024
#: Registers of a multiprocessor, of a producer's thread, and what a consumer needs besides its sums.
REGISTERS, PRODUCER_REGISTERS, OTHER_REGISTERS = 65536, 40, 40
#: The same of a thread that fills two sets in turn, but where a team's steps are written out: ptxas spills with fewer.
_TURNING_REGISTERS = 48
#: Pairs of taps of a step at most where sums are promoted, which they are between steps: 128 channels.
_MOST_PAIRS = 8


@dataclass(frozen=True, slots=True)
class Piece:
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
class Layout:
    """Sizes of a block, from the geometry and the floats of one slab of the epilogue.

    Raises ValueError where the tiling does not fit a block.
    """

    geometry: Geometry
    slab_floats: int

    def __post_init__(self) -> None:
        tiling = self.geometry.tiling
        if tiling.rows not in (64, 128, 256) or tiling.columns > 256 or tiling.columns % max(8, 8 * tiling.cluster) \
                or tiling.cluster not in (1, 2, 4) or not 1 <= tiling.teams <= 4 or tiling.stages < 2 \
                or (tiling.columns > 128 and tiling.columns % 16) or tiling.raw_right or tiling.split < 1 \
                or (tiling.phases > 1 and (tiling.split > 1 or tiling.columns > 128)) \
                or (tiling.phases > 1 and tiling.columns > 64 and tiling.columns % 16):
            raise ValueError(f"no tiles of {tiling}")
        if self.blocks == 0:
            raise ValueError(f"{tiling} takes {self.shared_bytes} bytes and {self.consumer_need} registers a thread")

    @property
    def workers(self) -> int:
        """Warpgroups that multiply."""
        teams = self.geometry.tiling.teams
        return teams if teams > 1 else 2 if self.geometry.tiling.rows > PRODUCT_ROWS else 1

    @property
    def products(self) -> int:
        """Products of 64 rows side by side in one warpgroup."""
        return self.geometry.tiling.rows * self.geometry.tiling.teams // (PRODUCT_ROWS * self.workers)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.producer_groups + self.workers)

    @cached_property
    def filling(self) -> Filling:
        """How producers bring x that they read as it lies in memory."""
        items = self.geometry.tiling.depth // CHUNK * -(-self.pitch // 32)
        return Filling(items, self.geometry.tiling.stages, self.geometry.depths)

    @cached_property
    def fill_batch(self) -> int:
        """Items that a warp of theirs asks for at a time: as many as registers are left for."""
        groups = self.producer_groups
        pool = self._launch_registers(1) // 8 * 8 * (groups + self.workers)
        need = self._need(min(1, self._most_parts))
        left = (pool - self.workers * -(-need // 8) * 8) // groups // 8 * 8 - PRODUCER_REGISTERS
        return self.filling.batch(left)

    @cached_property
    def producer_groups(self) -> int:
        """Warpgroups that bring steps."""
        return self.filling.groups if self.geometry.tiling.raw_left else 1

    @cached_property
    def producer_registers(self) -> int:
        """Registers of a thread that brings steps."""
        if not self.geometry.tiling.raw_left:
            return PRODUCER_REGISTERS
        return -(-(PRODUCER_REGISTERS + ITEM_REGISTERS * self.fill_batch) // 8) * 8

    @cached_property
    def taps(self) -> int:
        """Taps (or pairs of them) of a step at most: as many of a run as leave room for all stages."""
        longest = max((len(run.taps) for c in self.geometry.classes for run in c.runs), default=1)
        most = _MOST_PAIRS if self.geometry.pairs and self.geometry.tiling.promote else longest
        for parts in range(1, longest):
            taps = -(-longest // parts)
            if taps <= most and self.bytes_with(taps) <= BLOCK_BYTES:
                return taps
        return 1

    def bytes_with(self, taps: int) -> int:
        """Bytes of shared memory of a block with so many taps a step."""
        tiling = self.geometry.tiling
        stage = (self.chunk_lines * self._pitch(taps) + taps * self.tap_lines * tiling.columns) * ROW_BYTES
        return tiling.stages * (stage + 16) + 16 * (tiling.teams - 1) + 4 * self.slab_floats * self.workers

    def _pitch(self, taps: int) -> int:
        return -(-max((piece.rows for c in self.pieces_of(taps) for piece in c), default=8) // 8) * 8

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
        """Bytes of dynamic shared memory: stages, slabs, barriers."""
        return self.bytes_with(self.taps)

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """By class of output positions, what its steps serve."""
        return self.pieces_of(self.taps)

    def pieces_of(self, taps: int) -> tuple[tuple[Piece, ...], ...]:
        """The pieces with at most so many taps each, of equal lengths where possible."""
        geometry, result = self.geometry, []
        for group in geometry.classes:
            pieces = []
            for run in group.runs:
                parts = -(-len(run.taps) // taps)
                ends = [len(run.taps) * i // parts for i in range(parts + 1)]
                for begin, end in pairwise(ends):
                    first, last = run.taps[begin][0], max(run.reaches[begin:end])
                    place = run.phase * geometry.chunks * geometry.allocated_rows + run.shift + first
                    feeds = run.feeds[begin:end]
                    order = sorted(range(begin, end), key=run.feeds.__getitem__)
                    part = tuple((run.taps[i][0] - first, run.taps[i][1]) for i in order)
                    seconds = tuple(run.seconds[i] for i in order) if run.seconds else ()
                    counts = tuple(feeds.count(phase) for phase in range(geometry.tiling.phases))
                    pieces.append(Piece(place, geometry.tiling.rows + last - first, part, counts, seconds))
            result.append(tuple(pieces))
        return tuple(result)

    @property
    def keeps_right(self) -> bool:
        """Whether w is brought once and stays: all tiles have the same, and a stage the same step of each."""
        geometry, tiling = self.geometry, self.geometry.tiling
        alone = geometry.kernel.groups == geometry.blocks[1] == len(self.pieces) == tiling.split == 1
        return alone and self.steps > 0 and tiling.stages % self.steps == 0

    @property
    def steps(self) -> int:
        """Steps of a tile of the first class of output positions."""
        return len(self.pieces[0]) * self.geometry.depths

    @property
    def complete(self) -> bool:
        """Whether every piece feeds all output phases of a tile."""
        return all(all(piece.counts) for group in self.pieces for piece in group)

    @property
    def always_steps(self) -> bool:
        """Whether no tile, or part of one, is without steps."""
        least = min((len(group) for group in self.pieces), default=0)
        return least * self.geometry.depths >= self.geometry.tiling.split

    @property
    def offset(self) -> int:
        """The steps by which the second warpgroup's first stretch is shorter: one multiplies while the other adds."""
        return self.geometry.tiling.promote // 2 if self.workers == 2 and self.geometry.tiling.teams == 1 else 0

    def _advances(self, pieces: tuple[Piece, ...]) -> list[int]:
        """Of each step of a tile, how many taps follow each other in one sum."""
        return [max(piece.counts) for piece in pieces for _ in range(self.geometry.depths)]

    @cached_property
    def single_steps(self) -> bool:
        """Whether each step is a stretch."""
        return all(max(piece.counts) >= self.geometry.tiling.promote for group in self.pieces for piece in group)

    @property
    def stretch_numbers(self) -> list[int]:
        """Of each step of a tile of the first class, the stretch that it belongs to."""
        return stretch_numbers(self._advances(self.pieces[0]), self.geometry.tiling.promote)

    @cached_property
    def stretches(self) -> int:
        """The most stretches that a tile has, of those of its steps that are looked at."""
        tiling, most = self.geometry.tiling, 0
        for group in self.pieces:
            advances = self._advances(group)
            ends = [len(advances) * i // tiling.split for i in range(tiling.split + 1)]
            most = max(most, *(most_stretches(advances[begin:end], tiling.promote, (0, self.offset))
                               for begin, end in pairwise(ends)))
        return most

    @property
    def step_products(self) -> int:
        """Products of 64 rows of a step at most."""
        deep = max(1, self.geometry.tiling.depth // 16) * (3 if self.geometry.terms == 2 else 1)
        return max((len(piece.taps) for group in self.pieces for piece in group), default=0) * deep * self.products

    @property
    def round_stretches(self) -> int:
        """Stretches of a round."""
        return ROUND if ROUND * self.step_products <= (MANY if self.halves else FEW) else 2

    @property
    def written_out(self) -> bool:
        """Whether all steps of a tile stand in the text: they are few, the same of all tiles, and of all warpgroups."""
        return self.parts > 0 and self._is_short

    @cached_property
    def _is_short(self) -> bool:
        same = len(self.pieces) == self.geometry.tiling.split == 1 and (not self.offset or self.single_steps)
        return same and self.steps * self.step_products <= FEW

    @cached_property
    def parts(self) -> int:
        """Sets of registers for what is promoted, beside those of the sums."""
        if self._most_parts < 2:
            return self._most_parts
        spare = 0 if self._is_short and self.geometry.tiling.teams > 1 else _TURNING_REGISTERS - OTHER_REGISTERS
        return 2 if self._need(2) + spare <= self._registers(self.blocks) else 1

    @cached_property
    def _most_parts(self) -> int:
        """Sets that are of use: none where nothing is added up, two where products can run while one is added."""
        tiling = self.geometry.tiling
        if not tiling.promote or self.stretches < 2:
            return 0
        return 2 if self.stretches > 2 and (self._is_short or self._has_rounds) else 1

    @property
    def _has_rounds(self) -> bool:
        tiling = self.geometry.tiling
        return tiling.split == 1 and self.complete and (tiling.teams > 1 or self.workers == 1)

    @property
    def halves(self) -> bool:
        """Whether one half of the sums is added while the products of the other one run: of rounds without room for
        two sets, where each step is a stretch."""
        several = self.products * self.geometry.tiling.phases > 1 and self.stretches > 1 and self.single_steps
        return self.parts == 1 and several and not self._is_short and self._has_rounds

    @property
    def waits(self) -> int:
        """How often a tile's products wait for additions: no other warpgroup's or block's run meanwhile."""
        shared = self.blocks == 2 or (self.workers == 2 and self.geometry.tiling.teams == 1)
        between = 0 if shared or not self.parts else self.stretches - 1
        if self.written_out:
            return 0 if self.parts == 2 else max(0, between - 1)
        return between // self.round_stretches if self.parts == 2 or self.halves else between

    def _need(self, parts: int) -> int:
        per_product = self.geometry.tiling.columns // 2 * self.geometry.tiling.phases
        return self.products * per_product * (1 + parts) + OTHER_REGISTERS

    @property
    def sums(self) -> int:
        """Registers of a thread for sums."""
        return self.consumer_need - OTHER_REGISTERS

    @cached_property
    def consumer_need(self) -> int:
        """Registers that a thread that multiplies needs."""
        return self._need(self.parts if self.blocks else min(1, self._most_parts))

    @cached_property
    def blocks(self) -> int:
        """Blocks of a multiprocessor: two where they fit, none where not even one does."""
        need = self._need(min(1, self._most_parts))
        if self.geometry.tiling.teams == 1 and self.workers == 1 and self.geometry.tiling.cluster == 1:
            both = 2 * (self.shared_bytes + RESERVED_BYTES) <= PROCESSOR_BYTES
            if both and need <= self._registers(2):
                return 2
        return 1 if self.shared_bytes <= BLOCK_BYTES and need <= self._registers(1) else 0

    def _registers(self, blocks: int) -> int:
        """Registers of a thread that multiplies. Of a kernel with two blocks ptxas gives none more than it starts with,
        whatever moves later."""
        return self._launch_registers(2) if blocks == 2 else self._consumer_registers()

    def _launch_registers(self, blocks: int) -> int:
        return min(255, REGISTERS // (blocks * self.threads) // 8 * 8)

    def _consumer_registers(self) -> int:
        """Registers of a thread that multiplies, after those that the producer's warpgroup gives back."""
        groups = self.producer_groups
        pool = self._launch_registers(1) // 8 * 8 * (groups + self.workers) - groups * self.producer_registers
        return min(240, pool // self.workers // 8 * 8)

    @property
    def moved_registers(self) -> int:
        """Registers that threads that multiply raise theirs to; 0 where they have enough from the start, or two blocks
        share the multiprocessor: ptxas would not use more."""
        return 0 if self.blocks == 2 or self._launch_registers(1) >= 232 else self._consumer_registers()
