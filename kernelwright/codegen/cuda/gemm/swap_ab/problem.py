"""The numbers of a matrix product whose weight is read once, as it lies in memory: `Tiling.core` "swap_ab".

Output channels are the rows of products and positions their columns. A warpgroup has 64 output channels: its threads
read the channels of w that products take from them straight into registers, split them there, and multiply them with x,
which is packed and comes through shared memory. So w is neither packed nor written to shared memory, and it is split
once for each block of positions.

    x[stage][term][chunk of 8 channels][position]      rows of 16 bytes, as they are packed
    subtile[64 positions][output channels]                what the epilogue finishes

With `Tiling.converts_left` x is not packed either: of few tiles with many steps (parts of them in all blocks) each
element of x is needed by few blocks. Then warps that bring it have 32 positions each, split what copies have brought,
and write it to the stages, with a scale of each position:

    floats[warp][3 steps][position][channel], or [channel][position]     float32, as it lies in memory
    scale[stage][position]            what sums so far are multiplied by, and what they are at last; beside them of each
                                      warp whether any scale has changed

Packed, w is read, written and read again, 12 bytes an element: of 128 x 32768 x 32768 that is 3.1 ms at 4.2 TB/s, where
three products of float16 terms take 0.8 at their peak. Read once it is 1.0 ms, beside the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, SUBTILE_ROWS, Geometry, strides_of_unpacked_right
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Load
from kernelwright.roofline.multiprocessors import HOPPER

#: Rows of a product: output channels of a warpgroup. Channels of a step.
ROWS, DEPTH = 64, 64
#: Steps of x as it lies that a warp has on their way; its positions; floats from one position to the next, so that
#: eight lanes read 16 bytes each from all banks.
FLOAT_STEPS, WARP_POSITIONS, FLOAT_PITCH = 3, 32, DEPTH + 4
#: Registers of a thread that brings x, of one that splits it, and what one that multiplies needs beside sums, w and its
#: terms.
_BRINGER_REGISTERS, _SPLITTER_REGISTERS, _OTHER_REGISTERS = 24, 40, 40
#: Positions of products that are over before another warpgroup could multiply.
_FEW_POSITIONS = 32
#: Warpgroups that multiply, at most.
_MOST_WORKERS = 4


def right_strides(kernel: Contraction) -> tuple[int, int, int]:
    """Elements of w from one group to the next, from one channel and from one output channel.

    Raises ValueError where it cannot be read as it lies (`strides_of_unpacked_right`): there are to be no axes, and
    channels or output channels neighbours.
    """
    group, channel, column = strides_of_unpacked_right(kernel)
    if kernel.axes or 1 not in (channel, column) or min(channel, column) < 1:
        raise ValueError("the right operand has to be packed: its neighbours are not neighbours in memory")
    return group, channel, column


def left_strides(kernel: Contraction) -> tuple[int, int, int]:
    """Elements of x from one position to the next, from one group and from one channel.

    Raises ValueError where copies of 16 bytes cannot bring it: it is to be float32 in memory, channels or positions
    neighbours, and to begin and end at multiples of 16 bytes.
    """
    left = kernel.left
    if not isinstance(left, Load) or left.guards or left.whole or kernel.input_dtypes[left.buffer] != "float32":
        raise ValueError("the left operand has to be packed: it is not a tensor of float32")
    position, group, channel = left.index.strides
    ends = kernel.in_channels if channel == 1 else kernel.batch
    others = (left.index.offset, group * (kernel.groups > 1), position if channel == 1 else channel, ends)
    if 1 not in (position, channel) or min(position, channel) < 1 or any(number % 4 for number in others):
        raise ValueError("the left operand has to be packed: its neighbours are not neighbours in memory, by fours")
    return position, group, channel


@dataclass(frozen=True)
class SwapAB(Geometry):
    """Numbers of a matrix product under a tiling whose core is "swap_ab". Raises ValueError where a block has no room.

    ``rows`` of the tiling are positions, ``columns`` output channels, 64 for each warpgroup that multiplies; sums are
    promoted after every step, because each has a scale of its own.
    """

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        tiling = self.tiling
        right_strides(self.kernel)
        own = SwapAB.tiling_of(tiling.rows, tiling.columns, tiling.stages, tiling.split_k,
                               converts_left=tiling.converts_left)
        if tiling != own or tiling.rows not in (SUBTILE_ROWS, 2 * SUBTILE_ROWS) \
                or tiling.columns % ROWS or self.workers not in (1, 2, _MOST_WORKERS) or tiling.stages < 2 \
                or not 1 <= tiling.split_k <= max(1,
                                                  self.depths) or self.kernel.position_reductions or self.kernel.pools:
            raise ValueError(f"no swapped products of {tiling}")
        if tiling.converts_left:
            left_strides(self.kernel)
            if tiling.split_k < 2:
                raise ValueError(f"no x as it lies but for parts of steps: {tiling}")
        if self.need > self.registers:
            raise ValueError(f"{tiling} takes {self.need} registers a thread")
        if self.works >= 2**30:
            raise ValueError(f"no swapped products of so many tiles: {tiling}")

    @staticmethod
    def tiling_of(rows: int, columns: int, stages: int, split: int = 1, *, converts_left: bool = False) -> Tiling:
        """The tiling with these numbers."""
        return Tiling("swap_ab", rows, columns, DEPTH, stages, promote=1, converts_right=True, split_k=split,
                      converts_left=converts_left)

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
    def warps(self) -> int:
        """Warps that bring x as it lies."""
        return -(-self.positions // WARP_POSITIONS)

    @property
    def step_floats(self) -> int:
        """Floats of x as it lies that a warp brings for a step."""
        return WARP_POSITIONS * FLOAT_PITCH if left_strides(self.kernel)[2] == 1 else WARP_POSITIONS * DEPTH

    @property
    def ring_bytes(self) -> int:
        """Bytes of the stages and their barriers; where x comes as it lies, of that and of scales, too."""
        stages = self.tiling.stages * (self.stage_bytes + 16) + 8 * self.workers
        if not self.tiling.converts_left:
            return stages
        return stages + self.tiling.stages * (8 * self.positions + 16) + self.warps * FLOAT_STEPS * 4 * self.step_floats

    @property
    def in_order(self) -> bool:
        """Whether warpgroups multiply one after the other, so that one splits while another multiplies."""
        return self.workers > 1 and self.positions > _FEW_POSITIONS

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
        return self.tiles * self.tiling.split_k

    @property
    def need(self) -> int:
        """Registers of a thread that multiplies: sums of a step and of all, w of the next step and terms of this."""
        own = ROWS * DEPTH // 128
        return self.positions + own + own // 2 * self.terms + _OTHER_REGISTERS

    @property
    def launched_registers(self) -> int:
        """Registers that every thread begins with."""
        return min(255, HOPPER.registers // self.threads) // 8 * 8

    @property
    def producer_registers(self) -> int:
        """Registers of a thread that brings x."""
        return _SPLITTER_REGISTERS if self.tiling.converts_left else _BRINGER_REGISTERS

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies, after those that the producers give back."""
        pool = self.launched_registers * (self.workers + 1) - self.producer_registers
        return min(240, pool // self.workers // 8 * 8)

    def shared_bytes(self, subtile_bytes: int) -> int:
        """Bytes of shared memory of the core, whose subtiles and their tables take so many; where parts of steps are
        added later, blocks that do so have these. Raises ValueError where a block has less."""
        found = self.ring_bytes + subtile_bytes * (self.tiling.split_k == 1)
        if max(found, subtile_bytes) > HOPPER.block_bytes:
            raise ValueError(f"{found} or {subtile_bytes} bytes of shared memory do not fit a block: {self.tiling}")
        return found


def geometry_of(kernel: Contraction, tiling: Tiling) -> Geometry:
    """The numbers of a contraction on tensor cores, under any tiling that folds no taps."""
    return {"row_buffered": RowBuffered, "swap_ab": SwapAB}.get(tiling.core, Geometry)(kernel, tiling)
