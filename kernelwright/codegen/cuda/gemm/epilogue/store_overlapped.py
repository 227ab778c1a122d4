"""Stores of whole sectors by tiles that overlap, where positions lie one behind the other in memory.

Rows of a subtile that are no positions (what packing puts between the lines of x) leave gaps, and so a thread that
takes a row writes beside multiples of 32 bytes. That is what the device does worst: a sector of 32 bytes that two
stores share costs as much as six others (benchmarks/result_stores.py).

So sums are put into the subtile without the gaps (`epilogue.positions`). A column of it holds the positions of its rows
from a multiple of 4 on; as runs are multiples of 4 long, chunks of 4 ordinals are aligned here and in memory. A thread
takes one chunk and loops over columns, as in other operations a thread takes a row: what it needs of the place is
computed once. A subtile is 128 rows high where a warpgroup has as many, so that a warp stores 512 bytes at once.

Tiles overlap by a few rows (``tiling.overlap``), of which either could store the positions. A sector, two chunks, is
stored by the tile that has the ordinal of its first element among those from its own first one to that of the next
tile. It has all of them: `least_overlap` counts the rows. No sector is shared, but for those of runs whose length is no
multiple of 8, and of planes of a run in space, where rows that are no positions may be too many to be had twice.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import POSITION
from kernelwright.codegen.cuda.gemm.epilogue.positions import StoreRuns, collapsed, domain_of_runs, outer_axes
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import stores_channels
from kernelwright.codegen.cuda.gemm.points import PointEmitter, lies_at_multiples, ordinary_stores, straight
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Index

#: Neighbouring positions that a thread takes, and of a sector of memory (of float32).
CHUNK, SECTOR = 4, 8
#: Columns of a pass at once: of chunks fewer than of single sums.
_UNROLL = 8


def stores_densely(geometry: Geometry) -> bool:
    """Whether `StoreOverlapped` can take what a tile of one warpgroup stores: neighbouring positions, in runs and steps
    that are multiples of 4 elements, and nothing that it reads depends on positions in another way than that."""
    kernel, tiling = geometry.kernel, geometry.tiling
    outer = outer_axes(geometry)
    # With all of a tile.
    alone = tiling.rows == SUBTILE_ROWS or (tiling.rows == 2 * SUBTILE_ROWS and tiling.pingpong > 1)
    if outer is None or tiling.core != "wgmma" or tiling.split_k > 1 or not alone or kernel.all_reductions \
            or stores_channels(kernel):
        return False
    stores = collapsed(ordinary_stores(kernel), kernel, outer)
    return stores is not None and all(_is_aligned(store.index, kernel, outer) for store in stores)


def least_overlap(geometry: Geometry) -> int:
    """Rows that tiles must share so that each has whole sectors, a multiple of 4: as many as the rest of a sector has,
    and those between the lines that it touches. Raises ValueError where positions are no neighbours."""
    outer, phases = outer_axes(geometry), geometry.tiling.parities
    if outer is None:
        raise ValueError(f"no neighbours in tiles of {geometry.tiling}")
    rest, line, gaps = -(-(SECTOR - 1) // phases), geometry.kernel.axes[-1].out_size // phases, 0
    if len(geometry.kernel.axes) - outer > 1:
        gaps = -(-rest // line) * (geometry.extents[-1] - line)  # one may come first
    return -(-(rest + gaps) // 4) * 4


def _plane(kernel: Contraction, outer: int) -> int:
    """Positions of a run without other gaps between them than those of lines."""
    return prod(kernel.domain[max(3 + outer, len(kernel.domain) - 2):])


def _is_aligned(index: Index, kernel: Contraction, outer: int) -> bool:
    """Whether neighbours of a run are neighbours in memory, all else is multiples of 4 elements away, and so are the
    planes of a run in space: between them are rows that no overlap has."""
    sizes = domain_of_runs(kernel, outer)
    return index.strides[-1] == 1 and lies_at_multiples(index, sizes, CHUNK) and _plane(kernel, outer) % CHUNK == 0 \
        and sizes[-1] < 2**31


class _SectorEmitter(PointEmitter):
    """A PointEmitter of chunks that a tile stores, or leaves to the one before: ``first`` and ``second`` say which, of
    those that begin a sector and of others."""

    def store(self, buffer: Buffer, index: Index, node: Expression) -> None:
        """Write a chunk, if it is the tile's. Columns are a multiple of a sector apart, or of half of one."""
        step = index.strides[2]
        base = self.site.base(replace(index, strides=(*index.strides[:2], 0, *index.strides[3:])))
        odd = self.fresh("odd")
        self.fixed_lines.append(f"const int {odd} = ({base}) / {CHUNK} % 2;")
        self.mine = f"({odd} + o) % 2 ? second : first"
        if step % SECTOR == 0:
            self.mine = self.fresh("mine")
            self.fixed_lines.append(f"const bool {self.mine} = {odd} ? second : first;")
        super().store(buffer, index, node)

    def written(self, pointer: str, values: str) -> list[str]:
        return [f"if ({self.mine}) kw_write4({pointer}, {values});"]


class StoreOverlapped(StoreRuns):
    """A thread takes a chunk of neighbouring positions, and loops over a part of the columns. Raises ValueError unless
    `stores_densely`."""

    multiple = CHUNK

    def __init__(self, geometry: Geometry, name: str) -> None:
        outer = outer_axes(geometry)
        if outer is None or not stores_densely(geometry) or geometry.tiling.overlap < least_overlap(geometry):
            raise ValueError(f"{name}: no tiles that overlap: {geometry.tiling}")
        super().__init__(geometry, name, outer)
        self.chunks = self.positions // CHUNK
        self.layout = self.spread(self.chunks, CHUNK)
        self.comment = f"a thread takes {CHUNK} neighbouring positions, and walks over a part of the columns"
        self.emit((2,), CHUNK, _SectorEmitter)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        kind, place = self.kind, self.layout.of_thread(POSITION)
        lines = [
            "const int g = group;",
            "// Ordinals of the tile's first position and of the next tile's.",
            f"const {kind} begin = {self.name}_ordinal(first_row, phase_class);",
            f"const {kind} end = {self.name}_ordinal(first_row + {self.geometry.step}, phase_class);",
            f"const {kind} e = begin / {CHUNK} * {CHUNK} + {place};",
            "const bool first = e >= begin && e < end;", *self._second(), "if (!first && !second) return;",
            f"const int d = {self.unsigned('e')} % {self.run}u;",
            *self._line(), *self.part(self.chunks),
            *self.table.begins("low"), *self.scale_of_place(), *self.emitter.fixed_lines]
        at = f"sums + (o - first_column) * {self.strides[1]} + {place}"
        scale = ["const float scale = row_scale * column_scale[v];"] * self.geometry.scaled
        lines += self.table.steps("low", "high", [*self.own_columns(), *scale, *self._sums(at),
                                                  *straight(self.emitter)], _UNROLL)
        if not self.geometry.scaled:
            return lines
        return [*lines, "if (fast) return;", "#pragma unroll 1", "for (int o = low; o < high; ++o)",
                *indent(["#pragma unroll 1", f"for (int v = 0; v < {CHUNK}; ++v) {{", *indent(self.rewrite(
                    f"sums[(o - first_column) * {self.strides[1]} + {place} + v]", "d + v")),
                    "}"])]

    def _line(self) -> list[str]:
        """Define n and the positions along outer axes, of the thread's ordinal."""
        line = f"{self.unsigned('e')} / {self.run}u"
        if not self.outer:
            return self.places(line)
        return [f"const {self.kind} line = {line};", *self.places("line")]

    def _second(self) -> list[str]:
        """Define ``second``: whether a chunk is the tile's that does not begin its sector. Where lines of a plane end,
        it may be the first one that there is of it."""
        plane = _plane(self.kernel, self.outer)
        return [f"const {self.kind} before = e % {plane} == 0 ? e : e - {CHUNK};",
                "const bool second = e >= begin && before >= begin && before < end;"]

    def _sums(self, at: str) -> list[str]:
        """Define ``sum``, scaled."""
        lines = [f"float sum[{CHUNK}];", f"kw_read4(sum, {at});"]
        if self.geometry.scaled:
            lines += ["#pragma unroll", f"for (int v = 0; v < {CHUNK}; ++v) sum[v] *= scale;"]
        return lines
