"""How blocks share batched products: the products and tiles of one block, and what a thread has of a tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, prod

from kernelwright.plan.expressions import Expression, Index, Load, walk
from kernelwright.plan.kernels import BatchedProduct
from kernelwright.roofline.multiprocessors import HOPPER

#: Shared memory that a block may have without asking for more, in bytes, less what is left out between points.
_SHARED_BYTES = 38 << 10
#: Threads of a block, at least and at most; sums of a thread.
_THREADS, _SUMS = (32, 256), 64
#: Registers of a thread beside sums and operands.
_BESIDE = 44
#: Points of a tile along one side: more where the other side has few.
_MOST_TILE, _MOST_LONG_TILE = 128, 1024
#: Points of depth of one step.
_STEPS = (128, 64, 32, 16)
#: After how many points elements of shared memory may be left out.
_PERIODS = (16, 32, 64, 128, 256)
#: Products of a block at most.
_MOST_PRODUCTS = 32
#: Instructions of a thread for each element or four neighbours that it brings or stores: the index, and what moves it.
_PER_MOVE = 12


@dataclass(frozen=True, slots=True)
class Side:
    """Rows or columns of a tile. ``threads`` stand side by side, each with ``times`` times ``vector`` neighbours."""

    tile: int
    threads: int
    vector: int
    times: int

    @property
    def each(self) -> int:
        """Points of a thread."""
        return self.vector * self.times

    @property
    def extent(self) -> int:
        """Points of all threads: those of the tile, and what the last threads have beyond it."""
        return self.threads * self.each


@dataclass(frozen=True, slots=True)
class Layout:
    """A block has a tile of ``products`` products, and takes ``step`` points of depth at a time, a multiple of 4."""

    rows: Side
    columns: Side
    step: int
    products: int = 1

    @property
    def active(self) -> int:
        """Threads that multiply."""
        return self.products * self.rows.threads * self.columns.threads

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * ceil(self.active / 32)

    @property
    def registers(self) -> int:
        """Registers of a thread, as predicted."""
        return self.rows.each * self.columns.each + 4 * (self.rows.each + self.columns.each) + _BESIDE

    def pitch(self, side: Side, along_depth: bool, period: int = 0) -> int:
        """Elements between neighbours in shared memory: those of depth of one point of a side, where they lie
        ``along_depth``, else points of a side. Of the former eight threads that read four elements each of neighbouring
        points use each bank once. period: see `period_of`."""
        if along_depth:
            return self.step + 4 * (self.step % 8 == 0)
        return 4 * (ceil(side.extent / 4) + (side.extent // period if period else 0))

    def floats(self, side: Side, along_depth: bool, period: int = 0) -> int:
        """Elements of one product's operand in shared memory."""
        return (side.extent if along_depth else self.step) * self.pitch(side, along_depth, period)

    def shared_bytes(self, along: tuple[bool, bool]) -> int:
        """Shared memory of a block. along: whether either operand lies along depth."""
        return 4 * self.products * sum(map(self.floats, (self.rows, self.columns), along))


def main_load(*roots: Expression, domain: tuple[int, ...]) -> Index | None:
    """The index of the load that touches the most elements; None without any."""
    def elements(index: Index) -> int:
        found = 1
        for size, stride in zip(domain, index.strides, strict=True):
            found *= size if stride else 1
        return found

    loads = [part.index for part in walk(*roots) if isinstance(part, Load)]
    return max(loads, key=elements) if loads else None


def nearest(index: Index | None, axes: range, domain: tuple[int, ...]) -> int | None:
    """The axis of several points whose neighbours are nearest in memory; None where no axis moves."""
    moving = [a for a in axes if index is not None and index.strides[a] and domain[a] > 1]
    return min(moving, key=lambda axis: abs(index.strides[axis]), default=None) if index is not None else None


def axes_of(kernel: BatchedProduct, kind: str) -> range:
    """The numbers of the axes of rows, columns or depth."""
    first = len(kernel.outer)
    for name in ("rows", "columns", "depth"):
        count = len(getattr(kernel, name))
        if name == kind:
            return range(first, first + count)
        first += count
    raise ValueError(kind)


def along_depth(kernel: BatchedProduct) -> tuple[bool, bool]:
    """Whether each operand's neighbours in memory are neighbours along depth."""
    depth, found = axes_of(kernel, "depth"), []
    for expression, own in ((kernel.left, "rows"), (kernel.right, "columns")):
        index = main_load(expression, domain=kernel.domain)
        axis = nearest(index, range(axes_of(kernel, own).start, axes_of(kernel, own).stop), kernel.domain)
        deep = nearest(index, depth, kernel.domain)
        found.append(deep is not None and (axis is None or index is None
                                           or abs(index.strides[deep]) < abs(index.strides[axis])))
    return found[0], found[1]


def order_in_memory(index: Index, axes: Sequence[int]) -> list[int]:
    """Axes in the order in which memory has them, the nearest neighbours last."""
    return sorted(axes, key=lambda axis: (index.strides[axis] != 0, -abs(index.strides[axis])))


def period_of(kernel: BatchedProduct, word: str, layout: Layout) -> int:
    """After how many points of a side four elements of shared memory are left out, so that an operand whose axes memory
    has in another order is written to different banks; 0 where nothing is."""
    expression, kind, side, size = (kernel.left, "rows", layout.rows, kernel.sizes[0]) if word == "left" else (
        kernel.right, "columns", layout.columns, kernel.sizes[1])
    index, axes = main_load(expression, domain=kernel.domain), list(axes_of(kernel, kind))
    if index is None or side.tile < size or along_depth(kernel)[word == "right"]:
        return 0
    order = order_in_memory(index, axes)
    if order == axes:
        return 0
    apart = {axis: prod(kernel.domain[a] for a in axes if a > axis) for axis in axes}
    places = []  # of those that the threads of a warp write at a time
    for lane in range(32):
        number, place = 4 * lane if kernel.domain[order[-1]] % 4 == 0 else lane, 0
        for axis in reversed(order):
            place += number % kernel.domain[axis] * apart[axis]
            number //= kernel.domain[axis]
        places.append(place)

    def conflicts(period: int) -> int:
        banks = Counter((place + (place // period * 4 if period else 0)) % 32 for place in dict.fromkeys(places))
        return max(banks.values())

    return min((0, *_PERIODS), key=conflicts)


def stored_by_rows(kernel: BatchedProduct) -> bool:
    """Whether results of neighbouring rows are nearer in memory than those of neighbouring columns."""
    index = kernel.store.index
    row, column = (nearest(index, axes_of(kernel, kind), kernel.domain) for kind in ("rows", "columns"))
    return row is not None and (column is None or abs(index.strides[row]) < abs(index.strides[column]))


def _tiles(size: int, other: int) -> list[int]:
    """Sizes of tiles along a side of so many points: equal ones, in multiples of four where there are several."""
    most = _MOST_TILE if other > 8 else _MOST_LONG_TILE
    found = [size] if size <= most else []
    for limit in (most, most // 2, most // 4):
        parts = ceil(size / limit)
        if parts > 1:
            found.append(4 * ceil(size / parts / 4))
    return list(dict.fromkeys(found))


def _sides(tile: int) -> list[Side]:
    """What threads may have of a tile."""
    found = []
    for vector, times in ((4, 1), (4, 2), (2, 1), (1, 1), (2, 2), (1, 2)):
        if vector * times < 2 * tile:
            found.append(Side(tile, ceil(tile / (vector * times)), vector, times))
    return found


def layouts(kernel: BatchedProduct) -> Iterator[Layout]:
    """Those that a multiprocessor has room for."""
    rows, columns, depth = kernel.sizes
    along = along_depth(kernel)
    deep = 4 * max(1, ceil(depth / 4))
    steps = [min(deep, step) for step in _STEPS]
    for tiles in product(_tiles(rows, columns), _tiles(columns, rows)):
        for one, other in product(*map(_sides, tiles)):
            if one.each * other.each > _SUMS:
                continue
            for step in dict.fromkeys(steps):
                products = 1
                while products <= min(_MOST_PRODUCTS, kernel.groups):
                    found = Layout(one, other, step, products)
                    if found.threads > _THREADS[1] or found.shared_bytes(along) > _SHARED_BYTES:
                        break
                    yield found
                    products *= 2


def cycles(kernel: BatchedProduct, layout: Layout) -> float:
    """Cycles of a multiprocessor for each product, as predicted: what memory takes, and what multiplying takes, of
    which the lesser is hidden as far as several blocks are there at a time."""
    rows, columns, depth = kernel.sizes
    along, by_rows = along_depth(kernel), stored_by_rows(kernel)
    one, other = layout.rows, layout.columns
    tiles = ceil(rows / one.tile) * ceil(columns / other.tile)
    deep = layout.step * ceil(depth / layout.step) if depth > layout.step else 4 * ceil(depth / 4)
    warps = layout.threads / 32 / layout.products
    quick = one if by_rows else other
    wavefronts = 0.0
    for side, lies_along in ((one, along[0]), (other, along[1])):
        different = min(side.threads, 32) if side is quick else max(1, min(side.threads, ceil(32 / quick.threads)))
        words, reads = (4, side.each) if lies_along else (side.vector if side.vector == 4 else 1, 4 * side.each)
        wavefronts += reads / (1 if lies_along else words) * max(1.0, different * words / 32)
    shared = warps * deep / 4 * wavefronts
    products = warps * 32 * one.each * other.each * deep / HOPPER.float32_products
    moved = (one.tile + other.tile) * depth
    loads = sum(isinstance(part, Load) and all(any(part.index.strides[a] for a in axes_of(kernel, kind))
                                               for kind in ("rows", "columns"))
                for part in walk(kernel.store.expression))  # others have few elements
    stored = one.tile * other.tile
    vectors = 4 if quick.vector == 4 else 1
    moves = (moved / 4 + (1 + loads) * stored / vectors) * _PER_MOVE / HOPPER.float32_products
    multiplying = max(products, shared) + 0.5 * min(products, shared) + moves
    memory = 4 * (moved + (1 + loads) * stored) / HOPPER.memory_rate
    blocks = min(HOPPER.shared_bytes // (layout.shared_bytes(along) + HOPPER.block_reserve),
                 HOPPER.registers // (layout.registers * layout.threads), 32)
    resident = min(blocks * layout.threads / 32, HOPPER.warps)
    hidden = min(1.0, (blocks - 1) / 4) * min(1.0, resident / 20)
    started = 500 / max(1, blocks) / layout.products  # until a block has its first operands
    return tiles * (max(memory, multiplying) + (1 - 0.8 * hidden) * min(memory, multiplying) + started)


@lru_cache(maxsize=1024)
def choose(kernel: BatchedProduct) -> Layout | None:
    """The layout of the fewest cycles; None where none fits."""
    return min(layouts(kernel), key=lambda layout: cycles(kernel, layout), default=None)
