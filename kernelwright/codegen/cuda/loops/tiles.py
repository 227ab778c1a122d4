"""Pointwise kernels whose buffers are laid out in different orders: blocks own tiles, some accesses turn in them.

A block takes a box of points. The loads that lie across the walk are made in the order of their own memory and put
into shared memory; then every point is evaluated once, in the order of the walk; stores that lie across are turned
the same way behind. Rows of a tile are padded so that neither side meets a bank of shared memory twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES, is_long
from kernelwright.codegen.cuda.loops.device import Buffers, DeviceKernel, assemble
from kernelwright.codegen.cuda.loops.emitter import Buffer, Emitter, Stored
from kernelwright.codegen.cuda.loops.schedule import MEMORY, STATIC_SHARED
from kernelwright.codegen.cuda.loops.site import Site, indent, loops
from kernelwright.codegen.cuda.loops.tile_threads import BANKS, Tile, Turn, conflicts, plus, times
from kernelwright.codegen.loops.order import Access, Walk, accesses, choose_walk, memory_order
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.expressions import Expression, Index, Load, walk
from kernelwright.plan.kernels import LoopKernel, Store

IN_FLIGHT = 32
"""Most elements that a thread reads before it uses the first."""


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """A walk with a tile, and the threads of a block."""

    walk: Walk
    threads: int = 256


class TileEmitter(Emitter):
    """An emitter some of whose loads are in tiles."""

    def __init__(self, site: Site, buffers: Sequence[Buffer], tiles: dict[Load, Tile]) -> None:
        super().__init__(site, buffers)
        self.tiles = tiles

    def _load(self, load: Load, row: bool, lane: bool) -> str:
        tile = self.tiles.get(load)
        if tile is None:
            return super()._load(load, row, lane)
        name = self.fresh("x")
        step = sum(tile.pitch[a] for a in self.site.lane_axes)
        if step:
            moved = "v" if step == 1 else f"v * {step}"
            lines = loops(self.site, [f"{name}{self.load_step}[v] = {tile.at(moved)};"], window=False)
            self.row_loads.append(Stored(name, self.site.real, self.site.lanes, "[v]", lines))
            return f"{name}{self.load_step}[v]"
        self.row_loads.append(Stored(name, self.site.real, 1, "", [f"{name}{self.load_step} = {tile.at()};"]))
        return f"{name}{self.load_step}"


def pointwise_walk(kernel: LoopKernel) -> Walk:
    """The walk of a pointwise kernel in normal form."""
    if max(kernel.outer, default=0) >= 2**31:
        return Walk(tuple(range(len(kernel.outer))))
    found = list(dict.fromkeys(accesses(kernel).values()))
    return choose_walk(kernel.outer, found, MEMORY, ITEM_BYTES[kernel.compute])


def tiles_kernel(
    kernel: LoopKernel, schedule: TileSchedule, buffers: Buffers, name: str, comment: str
) -> DeviceKernel:
    """A pointwise kernel whose blocks take tiles."""
    return _Tiles(kernel, schedule, buffers).device(name, comment)


class _Tiles:
    def __init__(self, kernel: LoopKernel, schedule: TileSchedule, buffers: Buffers) -> None:
        self.kernel, self.buffers = kernel, buffers
        self.walk, self.threads = schedule.walk, schedule.threads
        self.real = C_TYPES[kernel.compute]
        self.words = ITEM_BYTES[kernel.compute] // 4
        self.used: set[str] = set()
        self.vectors: set[str] = set()
        self.tiles: dict[Load, Tile] = {}
        self.slack = 0  # elements of padding that fit for each tile

    def device(self, name: str, comment: str) -> DeviceKernel:
        kernel = self.kernel
        of = accesses(kernel)
        found = list(dict.fromkeys(of.values()))
        across = {found[number] for number in self.walk.across}
        loads = [node for node, access in of.items() if isinstance(node, Load) and access in across]
        turned = [store for store in kernel.outer_stores if of[store] in across]
        direct = [access for access in found if access not in across]
        copies = [prod(e for e, s in zip(self.walk.extents, of[item].strides, strict=True) if s)
                  for item in (*loads, *turned)]
        self.slack = (STATIC_SHARED // (4 * self.words) - sum(copies)) // len(copies)
        main = self._turn(self.walk.order, (1,) * len(kernel.outer), [Index(a.strides) for a in direct])
        lines = self._place_in_grid()
        before: list[str] = []
        groups = groupby(sorted(loads, key=lambda load: (self._own(of[load]), load.buffer, load.index.offset)),
                         key=lambda load: self._own(of[load]))
        for (order, moving), group in groups:
            own = list(group)
            turn = self._turn(order, moving, [load.index for load in own])
            emitter = self._emitter(turn)
            tiles = {}
            for load in own:
                tiles[load] = self._tile(load, main, turn, f"tile{len(self.tiles) + len(tiles)}")
            before += self._way(emitter, turn, [(tile, load) for load, tile in tiles.items()])
            self.tiles |= tiles
        if before:
            lines += [*before, "__syncthreads();"]
        behind: list[str] = []
        results = []
        emitter = self._emitter(main)
        for number, store in enumerate(turned):
            order, moving = self._own(of[store])
            turn = self._turn(order, moving, [store.index])
            value = Load(-1 - number, store.index)
            tile = self._tile(value, turn, main, f"tile{len(self.tiles)}")
            results.append((tile, store.expression))
            self.tiles[value] = tile
            behind += self._way(self._emitter(turn), turn, [Store(store.buffer, store.index, value)])
        straight = [store for store in kernel.outer_stores if store not in turned]
        lines += self._way(emitter, main, [*straight, *results])
        if behind:
            lines += ["__syncthreads();", *behind]
        shared = [f"__shared__ {self.real} {tile.name}[{tile.elements}];" for tile in self.tiles.values()]
        comment += (
            f"\nA block takes {' x '.join(map(str, self.walk.extents))} points; "
            f"{self._names(loads, turned)} in the order of its own memory, through shared memory."
        )
        grid = prod(self._blocks())
        emitter.used |= self.used
        emitter.vectors |= self.vectors
        return assemble(name, comment, [*shared, *lines], emitter, self.buffers, [], grid, self.threads)

    def _names(self, loads: Sequence[Load], stores: Sequence[Store]) -> str:
        names = [self.buffers.inputs[load.buffer].name for load in loads]
        names += [self.buffers.outputs[store.buffer].name for store in stores]
        return ", ".join(dict.fromkeys(names))

    def _own(self, access: Access) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The order of an access's memory, and 1 per axis along which it moves."""
        return memory_order(access.strides), tuple(int(stride != 0) for stride in access.strides)

    def _turn(self, order: tuple[int, ...], moving: tuple[int, ...], indices: Sequence[Index]) -> Turn:
        """The threads' way in ``order``; four lanes where some index takes four neighbours in one access."""
        sizes, extents = self.kernel.outer, self.walk.extents
        extents = tuple(e if m else 1 for e, m in zip(extents, moving, strict=True))
        axis = order[-1]
        fours = extents[axis] % 4 == 0 and sizes[axis] % 4 == 0 and any(
            index.strides[axis] == 1
            and index.offset % 4 == 0
            and all(stride % 4 == 0 for a, stride in enumerate(index.strides) if a != axis)
            for index in indices
        )
        return Turn(order, extents, 4 if fours else 1, self.threads)

    def _emitter(self, turn: Turn) -> TileEmitter:
        axes = tuple(range(len(self.kernel.outer)))
        site = Site(self.kernel.outer, (), self.real, is_long(self.kernel), axes,
                    turn.order[-1] if turn.lanes > 1 else None, turn.lanes)
        return TileEmitter(site, self.buffers.inputs, self.tiles)

    def _tile(self, value: Load, reader: Turn, writer: Turn, name: str) -> Tile:
        """The shared memory of a value, its fastest axis that of the reader, padded against conflicts of banks."""
        extents = tuple(e if s else 1 for e, s in zip(self.walk.extents, value.index.strides, strict=True))
        axes = [axis for axis in reversed(reader.order) if extents[axis] > 1]
        best = None
        rows = prod(extents) // extents[axes[0]]
        for padding in range(min(BANKS, self.slack // rows + 1)):
            pitch, step = [0] * len(extents), 1
            for number, axis in enumerate(axes):
                pitch[axis] = step
                step = step * extents[axis] + (padding if number == 0 else 0)
            cost = sum(conflicts(turn, pitch, self.words) for turn in (reader, writer))
            if best is None or cost < best[0]:
                best = cost, tuple(pitch), step
            if not cost:
                break
        assert best is not None  # none is a padding, too
        return Tile(name, best[1], best[2])

    def _blocks(self) -> list[int]:
        return [-(-size // extent) for size, extent in zip(self.kernel.outer, self.walk.extents, strict=True)]

    def _place_in_grid(self) -> list[str]:
        """The tile's first index along each axis; the index itself where the tile is one point wide."""
        blocks, lines, inner = self._blocks(), [], 1
        for axis in reversed(self.walk.order):
            extent = self.walk.extents[axis]
            text = "blockIdx.x" if inner == 1 else f"blockIdx.x / {inner}u"
            if inner * blocks[axis] < prod(blocks):
                text += f" % {blocks[axis]}u"
            inner *= blocks[axis]
            if extent == 1:
                lines.append(f"const int i{axis} = {text if blocks[axis] > 1 else '0'};")
            elif blocks[axis] > 1:
                lines.append(f"const int first{axis} = {text} * {extent}u;")
        return lines

    def _way(
        self, emitter: TileEmitter, turn: Turn, items: Sequence[Store | tuple[Tile, Expression]]
    ) -> list[str]:
        """A loop over the tile: stores to memory, and values put into tiles."""
        roots = [item.expression if isinstance(item, Store) else item[1] for item in items]
        loads = {node for root in roots for node in walk(root) if isinstance(node, Load)}
        reads = sum(turn.lanes if load.index.strides[turn.order[-1]] else 1 for load in loads)
        steps = turn.steps
        unroll = min(steps, max(1, IN_FLIGHT // max(1, reads)))
        step = "[u]" if unroll > 1 else ""
        emitter.start_walk(step)
        for item in items:
            if isinstance(item, Store):
                emitter.store(self.buffers.outputs[item.buffer], item.index, item.expression)
            else:
                tile, node = item
                moved = tile.pitch[turn.order[-1]] if turn.lanes > 1 else 0
                at = tile.at({0: "", 1: "v"}.get(moved, f"v * {moved}"))
                emitter.lane_lines.append(f"{at} = {emitter.value(node)};")
        self.used |= emitter.used
        self.vectors |= emitter.vectors
        arrays = [
            f"{s.c_type} {s.name}{f'[{unroll}]' if unroll > 1 else ''}{f'[{s.count}]' if s.place else ''};"
            for s in emitter.row_loads
        ]
        loads = [line for stored in emitter.row_loads for line in stored.lines]
        work = [*emitter.row_lines, *loops(emitter.site, emitter.lane_lines), *emitter.late_lines]
        number = "0" if steps == 1 else "k" if unroll == 1 else "u" if steps == unroll else "(k + u)"
        parts = (loads, work) if unroll > 1 and loads else ([*arrays, *loads, *work],)
        body = [*arrays] if len(parts) == 2 else []
        for part in parts:
            part = self._step(turn, number, part, -(-steps // unroll) * unroll)
            body += (
                ["#pragma unroll", f"for (unsigned u = 0; u < {unroll}; ++u) {{", *indent(part), "}"]
                if unroll > 1
                else part
            )
        if steps > unroll:
            body = [f"for (unsigned k = 0; k < {steps}; k += {unroll}) {{", *indent(body), "}"]
        return ["{", *indent([*emitter.fixed_lines, *body]), "}"]

    def _step(self, turn: Turn, step: str, body: Sequence[str], steps: int) -> list[str]:
        """``body`` at one position: its coordinates, and the limits of the tile and of the domain."""
        text = "\n".join(body)
        lines, limits = [], []
        if steps * turn.threads != turn.count:
            limits.append(f"{plus('threadIdx.x', times(step, turn.threads))} < {turn.count}u")
        blocks = self._blocks()
        coordinates = turn.coordinates(step)
        for axis, extent in enumerate(self.walk.extents):
            cut = self.kernel.outer[axis] % extent and turn.extents[axis] > 1
            index = re.search(rf"\bi{axis}\b", text) or cut
            if extent == 1 or not (index or re.search(rf"\bc{axis}\b", text)):
                continue
            lines.append(f"const int c{axis} = {coordinates.get(axis, '0')};")
            if index:
                first = f"first{axis} + " if blocks[axis] > 1 else ""
                lines.append(f"const int i{axis} = {first}c{axis};")
            if cut:
                limits.append(f"i{axis} < {self.kernel.outer[axis]}")
        if limits:
            body = [f"if ({' && '.join(limits)}) {{", *indent(body), "}"]
        return [*lines, *body]
