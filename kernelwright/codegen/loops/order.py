"""In which order a kernel walks its points, and which accesses take a detour through a tile: for every target.

Memory moves in sectors. A walk wastes them where neighbouring points of the walk lie apart in a buffer, and the
buffers of one kernel may be laid out in different orders (channels first, channels last, heads before time).
``choose_walk`` takes the order in which the fewest bytes are wasted. Where the rest still costs too much the points
are taken in boxes (tiles): the accesses that lie across are made in the order of their own memory, box by box, and
meet the others in a fast local copy of the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.expressions import Load, is_whole, walk
from kernelwright.plan.kernels import LoopKernel, Store

TOLERATED = 1.2
"""Bytes moved, relative to those needed, up to which a kernel walks its points without tiles."""

SMALL = 4096
"""Points below which a kernel is not worth a tile."""


WASTEFUL = 1.5
"""Sectors moved, relative to those needed, from which an access takes a detour."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of a kernel: element strides along the domain's axes and bytes of an element.

    ``buffer``: its number among the inputs, or among the outputs of a ``store``. ``fixed``: it can't take a detour
    (a guard moves along an axis along which the element does not).
    """

    strides: tuple[int, ...]
    item: int
    store: bool = False
    buffer: int = 0
    fixed: bool = False

    def footprint(self, sizes: Sequence[int]) -> int:
        """Bytes that the access touches over a domain."""
        return self.item * prod(size for size, stride in zip(sizes, self.strides, strict=True) if stride)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a target's memory asks of a walk.

    sector: bytes that move together. neighbours: points of a walk whose accesses are made together.
    run: bytes that an access across should find together in a tile; walk_run: the same for those along the walk.
    points: least points of a tile; most: its most points. room: bytes of all local copies.
    lanes: points of the fastest axis that are evaluated together. near: stride along the fastest axis up to which an
    access in a tile needs no detour, since what it leaves of a sector is soon used.
    """

    sector: int
    neighbours: int
    run: int
    walk_run: int
    points: int
    most: int
    room: int
    lanes: int = 1
    near: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """``order``: the axes, slowest first. ``extents``: the tile's size per axis, empty where there is none.

    ``across``: the accesses, by number, that are made in the order of their own memory.
    """

    order: tuple[int, ...]
    extents: tuple[int, ...] = ()
    across: tuple[int, ...] = ()


def accesses(kernel: LoopKernel) -> dict[Store | Load, Access]:
    """What every store and every distinct load of a pointwise kernel accesses."""
    found: dict[Store | Load, Access] = {}
    for store in kernel.outer_stores:
        item = ITEM_BYTES[kernel.output_dtypes[store.buffer]]
        # A tile's copies are of the kernel's floating type: whole numbers stay where they are.
        found[store] = Access(store.index.strides, item, True, store.buffer, is_whole(store.expression))
    for store in kernel.outer_stores:
        for node in walk(store.expression):
            if isinstance(node, Load):
                strides = node.index.strides
                fixed = any(g and not s for guard in node.guards
                            for g, s in zip(guard.index.strides, strides, strict=True))
                item = ITEM_BYTES[kernel.input_dtypes[node.buffer]]
                found[node] = Access(strides, item, False, node.buffer, fixed or node.whole)
    return found


def memory_order(strides: Sequence[int]) -> tuple[int, ...]:
    """The axes by descending stride; those along which nothing moves come first."""
    return tuple(sorted(range(len(strides)), key=lambda axis: (strides[axis] != 0, -abs(strides[axis]), axis)))


def sectors(access: Access, order: Sequence[int], sizes: Sequence[int], memory: Memory) -> int:
    """Sectors that the first neighbours of a walk touch."""
    ranges = [[access.strides[axis] * place for place in range(min(sizes[axis], memory.neighbours))] for axis in order]
    places = islice(product(*ranges), memory.neighbours)
    return len({sum(place) * access.item // memory.sector for place in places})


def waste(access: Access, order: Sequence[int], sizes: Sequence[int], memory: Memory) -> float:
    """Sectors that a walk in ``order`` moves for an access, relative to a walk in the order of its own memory."""
    own = sectors(access, memory_order(access.strides), sizes, memory)
    return max(1.0, sectors(access, order, sizes, memory) / own)


def choose_walk(sizes: Sequence[int], found: Sequence[Access], memory: Memory, real: int = 4) -> Walk:
    """The walk over a domain whose axes are in the order of ``sizes``.

    found: accesses without repetition; of orders that cost the same the domain's own wins, then that of
    the first access. real: bytes of an element of a local copy.
    """
    plain = tuple(range(len(sizes)))
    bytes_of = [access.footprint(sizes) for access in found]
    total = sum(bytes_of)
    orders = dict.fromkeys([plain, *(memory_order(access.strides) for access in found)])
    wasted = {order: [waste(access, order, sizes, memory) for access in found] for order in orders}
    idle = {order: max(1.0, memory.lanes / _fastest(order, sizes)) for order in orders}
    cost = {
        order: idle[order] * sum(b * w for b, w in zip(bytes_of, wasted[order], strict=True)) for order in orders
    }
    best = min(orders, key=cost.__getitem__)
    if cost[best] <= TOLERATED * total or prod(sizes) < SMALL:
        return Walk(best)

    def across(order: tuple[int, ...]) -> list[int]:
        return [n for n, w in enumerate(wasted[order]) if w >= WASTEFUL and bytes_of[n] * 32 > total]

    order = min(orders, key=lambda order: (idle[order], sum(bytes_of[n] for n in across(order))))
    chosen = sorted((n for n in across(order) if not found[n].fixed), key=lambda n: (-bytes_of[n], n))
    while chosen:
        for share in (1, 2, 4):
            runs = [(memory_order(found[n].strides), memory.run // share // found[n].item) for n in chosen]
            runs.append((order, memory.walk_run // share // real))
            extents = tile(sizes, runs, order, memory.points)
            turned = sorted(n for n in chosen if abs(found[n].strides[order[-1]]) > memory.near)
            local = sum(prod(e for e, s in zip(extents, found[n].strides, strict=True) if s) for n in turned)
            if prod(extents) <= memory.most and local * real <= memory.room:
                return Walk(order, extents, tuple(turned))
        chosen.pop()
    return Walk(best)


def _fastest(order: Sequence[int], sizes: Sequence[int]) -> int:
    return sizes[order[-1]] if order else 1


def tile(
    sizes: Sequence[int], runs: Sequence[tuple[Sequence[int], int]], order: Sequence[int], least: int
) -> tuple[int, ...]:
    """Extents of a box: for each (order, run) at least ``run`` neighbours in that order, and ``least`` points in all.

    An axis that is not cut shares its sectors with the next one, so the box grows along that too.
    """
    extents = [1] * len(sizes)
    for own, run in runs:
        have = 1
        for axis in reversed(own):
            if have >= run:
                break
            wanted = 1 << (-(-run // have) - 1).bit_length()
            extents[axis] = max(extents[axis], sizes[axis] if sizes[axis] < 2 * wanted else wanted)
            if extents[axis] < sizes[axis]:
                break
            have *= sizes[axis]
    for axis in reversed(order):
        while prod(extents) < least and extents[axis] < sizes[axis]:
            double = 2 * extents[axis]
            extents[axis] = sizes[axis] if sizes[axis] < 2 * double and sizes[axis] < least else double
    return tuple(min(extent, size) for extent, size in zip(extents, sizes, strict=True))
