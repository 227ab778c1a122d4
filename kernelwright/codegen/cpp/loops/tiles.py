"""Pointwise kernels whose buffers are laid out in different orders: tasks own tiles, some accesses turn in them.

A task takes a box of points. What lies across the walk is turned, in registers where its type allows, into or out
of a small local array, row by row of its own memory; the points are evaluated by vector loops over that array.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cpp.expressions import Scope, cost, guarded_text, index_text
from kernelwright.codegen.cpp.loops.text import (
    axis_names,
    braces,
    decode,
    definition,
    hoist,
    lane_loop,
    parallel_for,
    sizes_text,
    store_lines,
)
from kernelwright.codegen.loops.order import Access, Memory, Walk, accesses, choose_walk, memory_order
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.expressions import Index, Load
from kernelwright.plan.kernels import LoopKernel, Store

MEMORY = Memory(
    sector=64, neighbours=128, run=256, walk_run=512, points=4096, most=16384, room=32 * 1024, lanes=8, near=4
)
"""Cache lines of 64 bytes, of which two come together; a tile's copies stay in the first or second cache."""


def pointwise_walk(kernel: LoopKernel) -> Walk:
    """The walk of a pointwise kernel in normal form."""
    found = list(dict.fromkeys(accesses(kernel).values()))
    return choose_walk(kernel.outer, found, MEMORY, ITEM_BYTES[kernel.compute])


def generate_tiles(kernel: LoopKernel, walk: Walk, name: str) -> KernelSource:
    """The text of a kernel without row axes, in normal form, that ``walk`` takes in tiles."""
    return _Tiles(kernel, walk).source(name)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A local array: its name and the element distance per axis (0 where it has one place)."""

    name: str
    pitch: tuple[int, ...]
    elements: int


class _Tiles:
    def __init__(self, kernel: LoopKernel, walk: Walk) -> None:
        self.kernel, self.walk = kernel, walk
        self.names = axis_names(kernel)
        self.lane = walk.order[-1]
        self.blocks = [-(-size // extent) for size, extent in zip(kernel.outer, walk.extents, strict=True)]

    def source(self, name: str) -> KernelSource:
        kernel, walk = self.kernel, self.walk
        of = accesses(kernel)
        found = list(dict.fromkeys(of.values()))
        across = {found[number] for number in walk.across}
        loads = [node for node, access in of.items() if isinstance(node, Load) and access in across]
        turned = [store for store in kernel.outer_stores if of[store] in across]
        scope = Scope("c")
        lines = self._place()
        for number, load in enumerate(loads):
            tile = self._tile(f"tile{number}", of[load])
            lines += [f"alignas(64) real {tile.name}[{tile.elements}];", *self._fill(load, of[load], tile)]
            scope.bound[load] = self._element(tile)
        tiles = {store: self._tile(f"tile{len(loads) + n}", of[store]) for n, store in enumerate(turned)}
        lines += [f"alignas(64) real {tile.name}[{tile.elements}];" for tile in tiles.values()]
        lines += self._evaluate(scope, tiles)
        for store, tile in tiles.items():
            lines += self._empty(store, of[store], tile)
        roots = [store.expression for store in kernel.outer_stores]
        work = prod(kernel.outer) * (cost(roots) / 8 + 2)
        body = parallel_for("task", prod(self.blocks), lines, work)
        what = ", ".join(dict.fromkeys(
            [f"in{load.buffer}" for load in loads] + [f"out{store.buffer}" for store in turned]
        ))
        comment = f"Pointwise over {sizes_text(kernel.outer)}, in tiles of {sizes_text(walk.extents)}"
        comment += f"; {what} in the order of its own memory." if what else "."
        return definition(kernel, name, comment, body)

    def _cut(self, axis: int) -> bool:
        return self.walk.extents[axis] > 1 and self.blocks[axis] > 1

    def _first(self, axis: int) -> str:
        """Text of the tile's first index along an axis."""
        if self.walk.extents[axis] == 1:
            return self.names[axis]
        return f"first{axis}" if self._cut(axis) else "0"

    def _last(self, axis: int) -> str:
        return f"last{axis}" if self._cut(axis) else str(self.kernel.outer[axis])

    def _size(self, axis: int) -> str:
        return f"last{axis} - first{axis}" if self._cut(axis) else str(self.walk.extents[axis])

    def _place(self) -> list[str]:
        """The tile of a task."""
        axes = [axis for axis in self.walk.order if self.blocks[axis] > 1]
        names = [f"block{axis}" if self._cut(axis) else self.names[axis] for axis in axes]
        lines = decode("task", [self.blocks[axis] for axis in axes], names)
        for axis, extent in enumerate(self.walk.extents):
            size = self.kernel.outer[axis]
            if extent == 1 and self.blocks[axis] == 1:
                lines.append(f"constexpr int64_t {self.names[axis]} = 0;")
            if self._cut(axis):
                end = f"first{axis} + {extent}"
                if size % extent:
                    end = f"{end} < {size} ? {end} : {size}"
                lines += [f"const int64_t first{axis} = block{axis} * {extent};", f"const int64_t last{axis} = {end};"]
        return lines

    def _tile(self, name: str, access: Access) -> _Tile:
        """The fastest axis is that of the walk; its rows start in different sets of the cache."""
        pitch, step = [0] * len(self.walk.extents), 1
        for axis in reversed(self.walk.order):
            extent = self.walk.extents[axis]
            if extent > 1 and access.strides[axis]:
                pitch[axis] = step
                step *= extent
                if axis == self.lane:
                    step = -(-step // 8) * 8 + 8
        return _Tile(name, tuple(pitch), step)

    def _element(self, tile: _Tile, fixed: tuple[int, ...] = ()) -> str:
        """The element of a tile at the current point; ``fixed`` axes stand at the tile's first index."""
        terms = []
        for axis, step in enumerate(tile.pitch):
            if step and axis not in fixed:
                place = f"{self.names[axis]} - {self._first(axis)}" if self._cut(axis) else self.names[axis]
                terms.append(place if step == 1 else f"({place}) * {step}" if " " in place else f"{place} * {step}")
        return f"{tile.name}[{' + '.join(terms) or '0'}]"

    def _loops(self, axes: list[int], body: list[str]) -> list[str]:
        """``body`` at every place of the tile along ``axes``, slowest first."""
        for axis in reversed(axes):
            if self.walk.extents[axis] > 1:
                variable = self.names[axis]
                head = f"for (int64_t {variable} = {self._first(axis)}; {variable} < {self._last(axis)}; ++{variable})"
                body = braces(head, body)
        return body

    def _turn(self, index: Index, access: Access, tile: _Tile, dtype: str) -> tuple[int, list[int], str, str] | None:
        """How a block of an access turns in registers, or None where it can't.

        Gives its own fastest axis, the other axes, and texts of the elements where the block starts.
        """
        own = memory_order(access.strides)[-1]
        steps = access.strides[self.lane]
        if dtype != self.kernel.compute or own == self.lane or access.strides[own] != 1 or steps <= 0:
            return None
        if min(self.walk.extents[own], self.walk.extents[self.lane]) < 4:
            return None
        moving = [axis for axis in memory_order(access.strides) if access.strides[axis]]
        others = [axis for axis in moving if axis not in (own, self.lane)]
        names = [self._first(a) if a in (own, self.lane) else name for a, name in enumerate(self.names)]
        start = Index(
            tuple(0 if name == "0" else s for name, s in zip(names, index.strides, strict=True)), index.offset
        )
        return own, others, index_text(start, names), self._element(tile, (own, self.lane))

    def _fill(self, load: Load, access: Access, tile: _Tile) -> list[str]:
        """Read a load's part of the tile."""
        order = [axis for axis in memory_order(access.strides) if access.strides[axis]]
        way = None if load.guards else self._turn(
            load.index, access, tile, self.kernel.input_dtypes[load.buffer]
        )
        if way is None:
            body = [f"{self._element(tile)} = {guarded_text(load, self.names)};"]
            return self._loops(order, body)
        own, others, start, place = way
        call = (
            f"kw_turn(in{load.buffer} + {start}, {access.strides[self.lane]}, &{place}, {tile.pitch[own]}, "
            f"{self._size(self.lane)}, {self._size(own)});"
        )
        return self._loops(others, [call])

    def _empty(self, store: Store, access: Access, tile: _Tile) -> list[str]:
        """Write a store's part of the tile."""
        way = self._turn(store.index, access, tile, self.kernel.output_dtypes[store.buffer])
        if way is None:
            value = Load(-1, store.index)
            scope = Scope("s", {value: self._element(tile)})
            moved = Store(store.buffer, store.index, value)
            return self._loops(list(memory_order(access.strides)), store_lines([moved], self.kernel, scope, self.names))
        own, others, start, place = way
        call = (
            f"kw_turn(&{place}, {tile.pitch[own]}, out{store.buffer} + {start}, {access.strides[self.lane]}, "
            f"{self._size(own)}, {self._size(self.lane)});"
        )
        return self._loops(others, [call])

    def _evaluate(self, scope: Scope, tiles: dict[Store, _Tile]) -> list[str]:
        """Vector loops over the tile."""
        kernel = self.kernel
        roots = [store.expression for store in kernel.outer_stores]

        def finish(inner: Scope) -> list[str]:
            straight = [store for store in kernel.outer_stores if store not in tiles]
            lines = store_lines(straight, kernel, inner, self.names)
            lines += [f"{self._element(tile)} = {inner.text(store.expression)};" for store, tile in tiles.items()]
            return lines

        inner = scope.nested("t")
        body = hoist(roots, inner, self.names, [self.lane])
        body += lane_loop(
            roots, inner, self.names, self.lane, self._first(self.lane), self._last(self.lane), finish
        )
        return self._loops(list(self.walk.order[:-1]), body)
