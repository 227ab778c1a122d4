"""How a block has its part of an attention: rows, columns at a time, parts of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from kernelwright.plan.kernels import Attention
from kernelwright.roofline.multiprocessors import HOPPER

#: Elements of a query, and of a part of a value, at most: operands of two terms, and sums, must find room.
MOST_DEPTH, MOST_WIDTH = 256, 128
_SHARED_BYTES = 227 * 1024
#: Registers of a multiprocessor; of a thread that brings operands; of one that multiplies, beside sums and weights; of
#: one that splits operands, beside these.
_REGISTERS, _FEWER, _BESIDE, _AROUND = 1 << 16, 24, 40, 40
_TILES, _ENOUGH = (128, 96, 64, 48, 32, 16), 64


@dataclass(frozen=True, slots=True)
class Layout:
    """``groups`` warpgroups have 64 rows each, and take ``tile_columns`` columns at a time, of which ``stages`` find
    room. Queries have ``deep`` elements, with zeros at the end, and a block has ``wide`` of a value. ``blocks`` share a
    multiprocessor. converts: whether a block splits its operands into terms itself, so that none is packed before."""

    groups: int
    tile_columns: int
    deep: int
    wide: int
    stages: int
    blocks: int
    converts: bool = False

    @property
    def packers(self) -> int:
        """Threads that split a tile of an operand into terms."""
        return 128 if self.converts else 256

    @property
    def taken(self) -> int:
        """Values that a thread which splits keys and values has in registers."""
        return sum(8 * ceil(self.tile_columns * size / 8 / self.packers) for size in (self.deep, self.wide))

    @property
    def threads(self) -> int:
        """Threads of a block: its warpgroups, and one that brings operands."""
        return 128 * (self.groups + 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        stage = 4 * self.tile_columns * (self.deep + self.wide)
        return 4 * self.deep * 64 * self.groups + self.stages * stage + 8 * (3 + 4 * self.stages) + \
            self.converts * 4 * (self.groups + 2 * self.stages + 2 + self.packers // 8)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that brings operands, and of one that multiplies."""
        all_of_them = _REGISTERS // (self.blocks * self.threads) // 8 * 8 * (self.groups + 1)
        fewer = 8 * ceil((self.taken + _AROUND) / 8) if self.converts else _FEWER
        return fewer, min(240, (all_of_them - fewer) // self.groups // 8 * 8)

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor has room for so many blocks."""
        needed = self.wide + self.tile_columns + _BESIDE
        fewer, more = self.registers
        return self.blocks * (self.shared_bytes + 1024) <= _SHARED_BYTES + 1024 and needed <= more \
            and fewer < _REGISTERS // (self.blocks * self.threads)


def layouts(kernel: Attention) -> Iterator[Layout]:
    """Those that fit, the better ones first: as many columns as hide what every tile costs; many rows, as each block
    reads all keys and values, but no more than leave blocks for all multiprocessors; two stages."""
    deep, parts = 16 * ceil(kernel.depth / 16), ceil(kernel.width / MOST_WIDTH)
    if deep > MOST_DEPTH:
        return
    wide = 8 * ceil(ceil(kernel.width / parts) / 8)
    most = max(16, 16 * ceil(kernel.columns / 16))
    tiles = [tile for tile in _TILES if tile <= most] or [16]
    # Blocks of 128 rows leave no multiprocessor without one.
    fills = kernel.rows > 64 and kernel.batch * parts * ceil(kernel.rows / 128) >= HOPPER.count
    for converts in (True, False) if _converts(kernel) else (False, True):
        for few in (False, True):
            for groups, blocks in ((2, 1), (1, 2), (1, 1)) if fills else ((1, 3), (1, 2), (1, 1)):
                for stages, tile in product((2, 1), tiles):
                    stages = min(stages, ceil(kernel.columns / tile))
                    layout = Layout(groups, tile, deep, wide, stages, blocks, converts)
                    if few == (tile < min(_ENOUGH, most)) and layout.fits:
                        yield layout


def _converts(kernel: Attention) -> bool:
    """Whether operands are not packed before: each is read once, and what that takes is hidden by other blocks."""
    return kernel.rows <= 64 and kernel.columns <= 64


def choose(kernel: Attention) -> Layout | None:
    """The best layout; None where none fits."""
    return next(layouts(kernel), None)
