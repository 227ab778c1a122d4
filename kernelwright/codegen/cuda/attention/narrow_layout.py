"""How a block has its part of an attention in bfloat16 or float16: rows, columns at a time, parts of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from kernelwright.plan.kernels import Attention
from kernelwright.roofline.multiprocessors import HOPPER

#: Elements of a query, and of a part of a value, at most.
MOST_DEPTH, MOST_WIDTH = 256, 256
_SHARED_BYTES = 227 * 1024
#: Registers of a multiprocessor; of a thread that brings operands, by the number of warpgroups that multiply; of one
#: that multiplies, beside sums, scores and weights.
_REGISTERS, _FEWER, _BESIDE = 1 << 16, {1: 56, 2: 40, 3: 32}, 30
#: Registers that ptxas 13.0 wants for one product beside its results: of queries and keys, which both lie in shared
#: memory; of weights, which are four registers more, and values.
_BESIDE_SCORES, _BESIDE_SUMS = 26, 30
_TILES, _ENOUGH = (176, 128, 112, 96, 80, 64, 48, 32, 16), 64
#: Rows and columns that blocks beside each other take in one or two tiles each.
_SHORT = 128
#: Rows more that three warpgroups may have to take than two: keys and values are read by fewer blocks.
_BEARABLE = 1.07


@dataclass(frozen=True, slots=True)
class NarrowLayout:
    """``groups`` warpgroups have 64 rows each, and take ``tile_columns`` columns at a time, of which ``stages`` find
    room. Queries have ``deep`` elements, with zeros at the end, and a block has ``wide`` of a value. ``blocks`` share a
    multiprocessor. turns: whether warpgroups of a block begin their products one after the other."""

    groups: int
    tile_columns: int
    deep: int
    wide: int
    stages: int
    blocks: int
    turns: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block: its warpgroups, and one that brings operands."""
        return 128 * (self.groups + 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: operands are panels of 64 elements."""
        deep, wide = (ceil(size / 64) for size in (self.deep, self.wide))
        stage = 128 * self.tile_columns * (deep + wide)
        return 1024 + 128 * deep * 64 * self.groups + self.stages * stage + 8 * (3 + 4 * self.stages) + 8

    @property
    def registers_at_launch(self) -> int:
        """Registers of each thread before the ones give some of theirs to the others."""
        return _REGISTERS // (self.blocks * self.threads) // 8 * 8

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that brings operands, and of one that multiplies."""
        each = self.registers_at_launch
        fewer = min(_FEWER[self.groups], each - 8)
        return fewer, min(240, (each * (self.groups + 1) - fewer) // self.groups // 8 * 8)

    @property
    def compiles(self) -> bool:
        """Whether ptxas takes each product by itself: it allots one no more registers than launch bounds leave to every
        thread, whatever a thread has later by setmaxnreg."""
        # A product of N columns has N / 2 results in a thread. Values of 192 elements take 96 + 30 of the 128 registers
        # that two blocks of 256 threads leave; values of 200 take 100 + 30, and ptxas ends with an error (C7602).
        scores, sums = self.tile_columns // 2 + _BESIDE_SCORES, self.wide // 2 + _BESIDE_SUMS
        return max(scores, sums) <= self.registers_at_launch

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor has room for so many blocks, and a thread for what it has at any time."""
        # Sums, scores and half as many weights.
        needed = self.wide // 2 + self.tile_columns // 2 + self.tile_columns // 4 + _BESIDE
        fewer, more = self.registers
        return self.blocks * (self.shared_bytes + 1024) <= _SHARED_BYTES + 1024 and needed <= more and fewer >= 24 \
            and self.compiles


def layouts(kernel: Attention) -> Iterator[NarrowLayout]:
    """Those that fit, the better ones first: many rows, as each block reads all keys and values, but no more than leave
    blocks for all multiprocessors; as many columns as hide what every tile costs; three stages, or two."""
    deep, parts = 16 * ceil(kernel.depth / 16), ceil(kernel.width / MOST_WIDTH)
    if deep > MOST_DEPTH:
        return
    wide = 8 * ceil(ceil(kernel.width / parts) / 8)
    # Of columns that causality hides most are in large tiles. All tiles are alike: few columns are left over.
    tiles = list(dict.fromkeys(_even(kernel.columns, tile) for tile in _TILES if tile <= 128 or not kernel.causal))

    def lie_in(groups: int) -> int:
        """Rows with those that nobody asks for."""
        return 64 * groups * ceil(kernel.rows / (64 * groups))

    def fills(groups: int) -> bool:
        return kernel.rows > 64 * (groups - 1) and kernel.batch * parts * lie_in(groups) >= 64 * groups * HOPPER.count

    # Three warpgroups have 160 registers a thread, too few for long values.
    three = wide <= 64 and fills(3) and lie_in(3) <= _BEARABLE * lie_in(2)
    blocks = [*[(3, 1)] * three, *[(2, 1)] * fills(2), (1, 2), (1, 3), (1, 1)]
    if max(kernel.rows, kernel.columns) <= _SHORT:  # blocks beside each other hide that one has a single tile
        blocks = [(1, 2), (1, 3), *[(2, 1)] * fills(2), (1, 1)]
        tiles = list(dict.fromkeys([*(tile for tile in tiles if tile <= 64), *tiles]))
    for few in (False, True):
        for (groups, beside), stages, tile, turns in product(blocks, (3, 2, 1), tiles, (False, True)):
            if turns and (groups == 1 or tile >= kernel.columns):
                continue
            layout = NarrowLayout(groups, tile, deep, wide, stages, beside, turns)
            if few == (tile < min(_ENOUGH, tiles[0])) and layout.fits:
                yield layout


def _even(columns: int, most: int) -> int:
    """Columns of a tile, a multiple of 16, of as few tiles of ``most`` at most as there must be."""
    return 16 * ceil(ceil(columns / ceil(columns / most)) / 16)


def choose(kernel: Attention) -> NarrowLayout | None:
    """The best layout; None where none fits."""
    return next(layouts(kernel), None)
