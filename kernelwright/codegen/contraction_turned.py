"""The numbers of a matrix product whose weight is read once, as it lies in memory: `Tiling.core` "turned".

Output channels are the rows of products and positions their columns. A warpgroup has 64 output channels: its threads
read the channels of w that products take from them straight into registers, split them there, and multiply them with x,
which is packed and comes through shared memory. So w is neither packed nor written to shared memory, and it is split
once for each block of positions.

    x[stage][term][chunk of 8 channels][position]      rows of 16 bytes, as they are packed
    slab[64 positions][output channels]                what the epilogue finishes

Packed, w is read, written and read again, 12 bytes an element: of 128 x 32768 x 32768 that is 3.1 ms at 4.2 TB/s, where
three products of float16 terms take 0.8 at their peak. Read once it is 1.0 ms, beside the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.codegen.contraction_geometry import ROW_BYTES, SLAB_ROWS, Geometry, strides_of_raw_right
from kernelwright.codegen.contraction_rows import CHUNK
from kernelwright.codegen.contraction_strips import Strips
from kernelwright.plan.contraction import Contraction, Tiling

#: Rows of a product: output channels of a warpgroup. Channels of a step.
ROWS, DEPTH = 64, 64
#: Shared memory of a block, registers of a multiprocessor.
BLOCK_BYTES, _REGISTERS = 227 * 1024, 65536
#: Registers of a thread that brings x, and what one that multiplies needs beside sums, w and its terms.
PRODUCER_REGISTERS, _OTHER_REGISTERS = 24, 40
#: Warpgroups that multiply, at most.
_MOST_WORKERS = 4


def right_strides(kernel: Contraction) -> tuple[int, int, int]:
    """Elements of w from one group to the next, from one channel and from one output channel.

    Raises ValueError where it cannot be read as it lies (`strides_of_raw_right`): there are to be no axes, and channels
    or output channels neighbours.
    """
    group, channel, column = strides_of_raw_right(kernel)
    if kernel.axes or 1 not in (channel, column) or min(channel, column) < 1:
        raise ValueError("the right operand has to be packed: its neighbours are not neighbours in memory")
    return group, channel, column


@dataclass(frozen=True)
class Turned(Geometry):
    """Numbers of a matrix product under a tiling whose core is "turned". Raises ValueError where a block has no room.

    ``rows`` of the tiling are positions, ``columns`` output channels, 64 for each warpgroup that multiplies; sums are
    promoted after every step, because each has a scale of its own.
    """

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        tiling = self.tiling
        right_strides(self.kernel)
        usual = Turned.tiling_of(tiling.rows, tiling.columns, tiling.stages, tiling.split)
        if tiling != usual or tiling.rows not in (SLAB_ROWS, 2 * SLAB_ROWS) \
                or tiling.columns % ROWS or self.workers not in (1, 2, _MOST_WORKERS) or tiling.stages < 2 \
                or not 1 <= tiling.split <= max(1, self.depths) or self.kernel.totals or self.kernel.pools:
            raise ValueError(f"no turned products of {tiling}")
        if self.need > self.registers:
            raise ValueError(f"{tiling} takes {self.need} registers a thread")
        if self.works >= 2**30:
            raise ValueError(f"no turned products of so many tiles: {tiling}")

    @staticmethod
    def tiling_of(rows: int, columns: int, stages: int, split: int = 1) -> Tiling:
        """The tiling with these numbers."""
        return Tiling("turned", rows, columns, DEPTH, stages, promote=1, raw_right=True, split=split)

    @property
    def workers(self) -> int:
        """Warpgroups that multiply."""
        return self.tiling.columns // ROWS

    @property
    def threads(self) -> int:
        """Threads of a block: those, and the warpgroup that brings x."""
        return 128 * (self.workers + 1)

    @property
    def positions(self) -> int:
        """Positions of a product: those of a tile, or of all there are."""
        return min(self.tiling.rows, -(-self.kernel.batch // CHUNK) * CHUNK)

    @property
    def step_chunks(self) -> int:
        """Chunks of a step."""
        return self.tiling.depth // CHUNK

    @property
    def stage_bytes(self) -> int:
        """Bytes of x that a step brings."""
        return self.terms * self.step_chunks * self.positions * ROW_BYTES

    @property
    def tiles(self) -> int:
        """Tiles, of all groups."""
        return self.kernel.groups * prod(self.blocks)

    @property
    def sums_of_part(self) -> int:
        """Sums of a part of the steps, of all tiles."""
        return self.tiles * self.positions * self.tiling.columns

    @property
    def works(self) -> int:
        """What blocks take one after the other: parts of tiles."""
        return self.tiles * self.tiling.split

    @property
    def need(self) -> int:
        """Registers of a thread that multiplies: sums of a step and of all, w of the next step and terms of this."""
        own = ROWS * DEPTH // 128
        return self.positions + own + own // 2 * self.terms + _OTHER_REGISTERS

    @property
    def launched_registers(self) -> int:
        """Registers that every thread begins with."""
        return min(255, _REGISTERS // self.threads) // 8 * 8

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies, after those that the producers give back."""
        pool = self.launched_registers * (self.workers + 1) - PRODUCER_REGISTERS
        return min(240, pool // self.workers // 8 * 8)

    def shared_bytes(self, slabs: int, slab_floats: int) -> int:
        """Bytes of shared memory beside so many slabs, their tables included. Raises ValueError where it has less."""
        found = self.tiling.stages * (self.stage_bytes + 16) + 4 * slabs * slab_floats
        if found > BLOCK_BYTES:
            raise ValueError(f"{found} bytes of shared memory do not fit a block: {self.tiling}")
        return found


def geometry_of(kernel: Contraction, tiling: Tiling) -> Geometry:
    """The numbers of a contraction on tensor cores, under any tiling that joins no taps."""
    return {"strips": Strips, "turned": Turned}.get(tiling.core, Geometry)(kernel, tiling)
