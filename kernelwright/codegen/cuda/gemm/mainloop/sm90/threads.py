"""How many threads a contraction's block on wgmma has, and how they use registers.

`mainloop.sm90.steps` says what they bring and multiply.

Tiles in work (``tiling.pingpong``): with one, two warpgroups share a tile of 128 or 256 rows and a block begins the
next tile when both are done; with more, each warpgroup has a tile of its own, and while some write their results
another multiplies. The producers bring steps in the order of tiles. A consumer warpgroup begins a tile when the one
before it has seen the last step of its own and asked for its products, which may still be running: a barrier tells no
more than whether its last phase is over, so nobody may wait for a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

from kernelwright.codegen.cuda.gemm.mainloop.sm90.accumulation_intervals import (
    FEW,
    MANY,
    ROUND,
    interval_numbers,
    most_intervals,
)
from kernelwright.codegen.cuda.gemm.mainloop.sm90.steps import BLOCK_BYTES, Steps, TapGroup
from kernelwright.codegen.cuda.gemm.operands.converter_warps import LOAD_CHUNK_REGISTERS, Filling
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.roofline.multiprocessors import HOPPER

#: Bytes of shared memory of a multiprocessor, and what the system takes of it for each block.
PROCESSOR_BYTES, RESERVED_BYTES = 228 * 1024, 1024
#: Registers of a multiprocessor, of a producer's thread, and what a consumer needs besides its sums.
REGISTERS, PRODUCER_REGISTERS, OTHER_REGISTERS = HOPPER.registers, 40, 40
#: The same of a thread that fills two sets in turn, but where a consumer warpgroup's steps are written out: ptxas
#: spills with fewer.
_TURNING_REGISTERS = 48
#: Registers of a producer's thread that waits for x to be packed.
_WAITING_REGISTERS = 48
#: What an epilogue of positions without gaps needs more: ptxas spills with less.
_DENSE_REGISTERS = 16
#: Where the core packs x: warpgroups that do, and chunks that a warp of theirs asks for at a time; the best first.
_PACKING = ((2, 8), (2, 4), (1, 8), (1, 4), (1, 2))


@dataclass(frozen=True)
class Layout(Steps):
    """Steps, threads and registers of a block. Raises ValueError where the tiling does not fit one."""

    def __post_init__(self) -> None:
        tiling = self.geometry.tiling
        if tiling.rows not in (64, 128, 256) or tiling.columns > 256 or tiling.columns % max(8, 8 * tiling.cluster) \
                or tiling.cluster not in (1, 2, 4) or not 1 <= tiling.pingpong <= 4 or tiling.stages < 2 \
                or (tiling.columns > 128 and tiling.columns % 16) or tiling.converts_right or tiling.split_k < 1 \
                or (tiling.parities > 1 and (tiling.split_k > 1 or tiling.columns > 128)) \
                or (tiling.parities > 1 and tiling.columns > 64 and tiling.columns % 16):
            raise ValueError(f"no tiles of {tiling}")
        if self.bytes_with(1) > BLOCK_BYTES:  # most tilings that do not fit, at once
            raise ValueError(f"{tiling} takes {self.bytes_with(1)} bytes")
        if self.blocks == 0:
            raise ValueError(f"{tiling} takes {self.shared_bytes} bytes and {self.consumer_need} registers a thread")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.producer_groups + self.workers)

    @cached_property
    def filling(self) -> Filling:
        """How producers bring x that they read as it lies in memory."""
        load_chunks = self.geometry.tiling.depth // CHUNK * -(-self.pitch // 32)
        return Filling(load_chunks, self.geometry.tiling.stages, self.geometry.depths)

    @cached_property
    def fill_batch(self) -> int:
        """Load chunks that a warp of theirs asks for at a time: as many as registers are left for."""
        groups = self.producer_groups
        pool = self._launch_registers(1) // 8 * 8 * (groups + self.workers)
        need = self._need(min(1, self._most_parts))
        left = (pool - self.workers * -(-need // 8) * 8) // groups // 8 * 8 - PRODUCER_REGISTERS
        return self.filling.batch(left)

    @cached_property
    def producer_groups(self) -> int:
        """Warpgroups that bring steps, or make them ready."""
        if self.geometry.tiling.converts_left:
            return self.filling.groups
        return 1 + (self.packing[0] if self.geometry.tiling.packs_concurrently else 0)

    @cached_property
    def packing(self) -> tuple[int, int]:
        """Where the core packs x: the warpgroups that do, and the chunks that their warps ask for at a time. Of those
        for which registers are left the most on their way, beside two sets of sums where these are of use and fit."""
        useful = [(groups, batch) for groups, batch in _PACKING if batch < 2 * self.geometry.part_chunks]
        for parts in range(self._most_parts, min(1, self._most_parts) - 1, -1):
            for groups, batch in useful:
                if self._spare_registers(1 + groups, parts) >= groups * self._pack_registers(batch):
                    return groups, batch
        return _PACKING[-1]

    @property
    def asked_chunks(self) -> int:
        """Chunks of x that those who pack ask for: their last ones may pass its channels."""
        geometry, batch = self.geometry, self.packing[1]
        return (geometry.left_parts - 1) * geometry.part_chunks + -(-geometry.part_chunks // batch) * batch

    def _spare_registers(self, producer_groups: int, parts: int) -> int:
        """Registers that warpgroups which multiply, with so many sets of sums, and one that brings steps leave."""
        groups = producer_groups + self.workers
        pool = min(255, REGISTERS // (128 * groups) // 8 * 8) // 8 * 8 * groups
        tiling = self.geometry.tiling
        need = self._need(parts) + _DENSE_REGISTERS * (tiling.overlap > 0 or tiling.sector_aligned)
        return pool - self.workers * -(-need // 8) * 8 - _WAITING_REGISTERS

    def _pack_registers(self, batch: int) -> int:
        """Registers of a thread that packs x, ``batch`` chunks at a time."""
        return PRODUCER_REGISTERS + CHUNK * (batch + 1)

    @property
    def pack_registers(self) -> int:
        """Registers of a thread that packs x."""
        return self._pack_registers(self.packing[1])

    @cached_property
    def producer_registers(self) -> int:
        """Registers of a thread that brings steps."""
        if not self.geometry.tiling.converts_left:
            return _WAITING_REGISTERS if self.geometry.tiling.packs_concurrently else PRODUCER_REGISTERS
        return -(-(PRODUCER_REGISTERS + LOAD_CHUNK_REGISTERS * self.fill_batch) // 8) * 8

    @property
    def offset(self) -> int:
        """The steps by which the second warpgroup's first interval is shorter: one multiplies while the other adds."""
        return self.geometry.tiling.promote // 2 if self.workers == 2 and self.geometry.tiling.pingpong == 1 else 0

    def _advances(self, tap_groups: tuple[TapGroup, ...]) -> list[int]:
        """Of each step of a tile, how many taps follow each other in one sum."""
        depths = self.geometry.depths
        return list(chain.from_iterable([max(tap_group.counts)] * depths for tap_group in tap_groups))

    @cached_property
    def single_steps(self) -> bool:
        """Whether each step is an interval."""
        return all(max(tap_group.counts) >= self.geometry.tiling.promote for group in self.tap_groups
                   for tap_group in group)

    @property
    def interval_numbers(self) -> list[int]:
        """Of each step of a tile of the first class, the interval that it belongs to."""
        return interval_numbers(self._advances(self.tap_groups[0]), self.geometry.tiling.promote)

    @cached_property
    def intervals(self) -> int:
        """The most intervals that a tile has, of those of its steps that are looked at."""
        tiling, most = self.geometry.tiling, 0
        for group in self.tap_groups:
            advances = self._advances(group)
            ends = [len(advances) * i // tiling.split_k for i in range(tiling.split_k + 1)]
            parts = {tuple(advances[begin:end]) for begin, end in pairwise(ends)}  # most are alike
            most = max(most, *(most_intervals(part, tiling.promote, (0, self.offset)) for part in parts))
        return most

    @property
    def step_products(self) -> int:
        """Products of 64 rows of a step at most."""
        deep = max(1, self.geometry.tiling.depth // 16) * (3 if self.geometry.terms == 2 else 1)
        return max((len(tap_group.taps) for group in self.tap_groups for tap_group in group),
                   default=0) * deep * self.products

    @property
    def round_intervals(self) -> int:
        """Intervals of a round."""
        return ROUND if ROUND * self.step_products <= (MANY if self.halves else FEW) else 2

    @property
    def written_out(self) -> bool:
        """Whether all steps of a tile stand in the text: they are few, the same of all tiles, and of all warpgroups."""
        return self.parts > 0 and self._is_short

    @cached_property
    def _is_short(self) -> bool:
        same = len(self.tap_groups) == self.geometry.tiling.split_k == 1 and (not self.offset or self.single_steps)
        return same and self.steps * self.step_products <= FEW

    @cached_property
    def parts(self) -> int:
        """Sets of registers for what is promoted, beside those of the sums."""
        if self._most_parts < 2:
            return self._most_parts
        spare = 0 if self._is_short and self.geometry.tiling.pingpong > 1 else _TURNING_REGISTERS - OTHER_REGISTERS
        return 2 if self._need(2) + spare <= self._registers(self.blocks) else 1

    @cached_property
    def _most_parts(self) -> int:
        """Sets that are of use: none where nothing is added up, two where products can run while one is added."""
        tiling = self.geometry.tiling
        if not tiling.promote or self.intervals < 2:
            return 0
        return 2 if self.intervals > 2 and (self._is_short or self._has_rounds) else 1

    @property
    def _has_rounds(self) -> bool:
        tiling = self.geometry.tiling
        return tiling.split_k == 1 and self.complete and (tiling.pingpong > 1 or self.workers == 1)

    @property
    def halves(self) -> bool:
        """Whether one half of the sums is added while the products of the other one run: of rounds without room for two
        sets, where each step is an interval."""
        several = self.products * self.geometry.tiling.parities > 1 and self.intervals > 1 and self.single_steps
        return self.parts == 1 and several and not self._is_short and self._has_rounds

    @property
    def waits(self) -> int:
        """How often a tile's products wait for additions: no other warpgroup's or block's run meanwhile."""
        shared = self.blocks == 2 or (self.workers == 2 and self.geometry.tiling.pingpong == 1)
        between = 0 if shared or not self.parts else self.intervals - 1
        if self.written_out:
            return 0 if self.parts == 2 else max(0, between - 1)
        return between // self.round_intervals if self.parts == 2 or self.halves else between

    def _need(self, parts: int) -> int:
        per_product = self.geometry.tiling.columns // 2 * self.geometry.tiling.parities
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
        need, tiling = self._need(min(1, self._most_parts)), self.geometry.tiling
        if tiling.pingpong == 1 and self.workers == 1 and tiling.cluster == 1:
            both = 2 * (self.shared_bytes + RESERVED_BYTES) <= PROCESSOR_BYTES
            packs = self.pack_registers if tiling.packs_concurrently else 0
            if both and max(need, packs) <= self._registers(2):
                return 2
        return 1 if self.shared_bytes <= BLOCK_BYTES and need <= self._registers(1) else 0

    def _registers(self, blocks: int) -> int:
        """Registers of a thread that multiplies. Of a kernel with two blocks ptxas gives none more than it starts with,
        whatever moves later."""
        return self._launch_registers(2) if blocks == 2 else self._consumer_registers()

    @property
    def launched_registers(self) -> int:
        """Registers that every thread begins with where a multiprocessor has one block."""
        return self._launch_registers(1)

    def _launch_registers(self, blocks: int) -> int:
        return min(255, REGISTERS // (blocks * self.threads) // 8 * 8)

    def _consumer_registers(self) -> int:
        """Registers of a thread that multiplies, after those that the producer's warpgroup gives back."""
        groups = self.producer_groups
        pool = self._launch_registers(1) // 8 * 8 * (groups + self.workers) - groups * self.producer_registers
        if self.geometry.tiling.packs_concurrently:
            pool -= self.packing[0] * (self.pack_registers - self.producer_registers)
        return min(240, pool // self.workers // 8 * 8)

    @property
    def moved_registers(self) -> int:
        """Registers that threads that multiply raise theirs to, or lower; 0 where they have enough from the start, or
        two blocks share the multiprocessor: ptxas would not use more."""
        return 0 if self.blocks == 2 or self._launch_registers(1) >= 232 else self._consumer_registers()
