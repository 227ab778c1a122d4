"""Stores by warps that begin at multiples of 32 bytes, wherever runs of positions begin.

A sector of 32 bytes that two stores share costs memory as much as several others (`epilogue.store_overlapped`). Where
a thread takes a row, a warp stores 32 or 64 positions from anywhere on, and shares both ends.

So a warp takes a column at a time, and what the tile has of a run: its lanes take neighbouring positions from the
multiple of a sector on at or before the first one. Only the ends of what the tile has of a run are shared, with other
tiles, or with what comes before and behind a run. No rows are computed twice for that, and runs and columns may begin
anywhere: those of odd lengths do so differently for each line and channel, and so a lane's position is another one of
each column. Where all of that is even a lane takes two positions. A subtile is as high as a tile of one warpgroup.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import POSITION
from kernelwright.codegen.cuda.gemm.epilogue.column_table import READ
from kernelwright.codegen.cuda.gemm.epilogue.positions import StoreRuns, collapsed, domain_of_runs, outer_axes
from kernelwright.codegen.cuda.gemm.epilogue.store import PAIR, PairEmitter
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import stores_channels
from kernelwright.codegen.cuda.gemm.points import PointEmitter, lies_at_multiples, ordinary_stores, straight
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import times
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Index

#: Bytes of a sector of memory.
_SECTOR = 32
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def _outer(geometry: Geometry) -> int | None:
    """How many axes are no part of a run: as few as what is stored and read allows; None where none does."""
    kernel, outer = geometry.kernel, outer_axes(geometry)
    if outer is None or any(store.index.strides[-1] != 1 for store in ordinary_stores(kernel)):
        return None
    return next((n for n in dict.fromkeys((outer, len(kernel.axes) - 1))
                 if collapsed(ordinary_stores(kernel), kernel, n) is not None
                 and domain_of_runs(kernel, n)[-1] < 2**31), None)


def stores_aligned(geometry: Geometry) -> bool:
    """Whether `StoreAligned` can take what a tile of one warpgroup stores."""
    kernel, tiling = geometry.kernel, geometry.tiling
    # With all of a tile.
    alone = tiling.rows == SUBTILE_ROWS or (tiling.rows == 2 * SUBTILE_ROWS and tiling.pingpong > 1)
    return tiling.core == "wgmma" and tiling.split_k == 1 and not tiling.overlap and alone and bool(kernel.axes) \
        and not kernel.all_reductions and not stores_channels(kernel) and _outer(geometry) is not None


def _in_twos(kernel: Contraction, geometry: Geometry, outer: int) -> bool:
    """Whether two neighbours from an even ordinal on lie together in every store."""
    even = geometry.tiling.parities == 2 or (geometry.extents[-1] % PAIR == 0 and kernel.axes[-1].out_size % PAIR == 0)
    sizes = domain_of_runs(kernel, outer)
    stores = collapsed(ordinary_stores(kernel), kernel, outer)
    assert stores is not None  # of `_outer`
    return even and sizes[-1] % PAIR == 0 and all(
        kernel.output_dtypes[store.buffer] == "float32" and lies_at_multiples(store.index, sizes, PAIR)
        for store in stores)


class StoreAligned(StoreRuns):
    """A warp takes a part of the columns, and of each what the tile has of a run, in whole sectors. Raises ValueError
    unless `stores_aligned`."""

    def __init__(self, geometry: Geometry, name: str) -> None:
        outer = _outer(geometry)
        if outer is None or not stores_aligned(geometry):
            raise ValueError(f"{name}: no warps that begin at multiples of {_SECTOR} bytes: {geometry.tiling}")
        super().__init__(geometry, name, outer)
        self.lanes = PAIR if _in_twos(self.kernel, geometry, outer) else 1
        self.layout = self.spread(32, self.lanes)
        self.comment = "a warp takes a part of the columns, and of each a run of positions, from whole sectors on"
        self.emit((2, len(self.domain) - 1), self.lanes, PairEmitter if self.lanes == PAIR else PointEmitter)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        kind, places = self.kind, self.ordinals
        line = f"{self.unsigned('at')} / {places}u"
        segment = [
            f"const {kind} line = {line};", *self.places(self.unsigned("line")),
            "// Of the run: the tile's first position, and the one behind its last; position 0's place in a subtile.",
            f"const int begin_d = at - line * {places}, end_d = min(end - line * {places}, {self._typed(self.run)});",
            f"const int shift = line * {places} - begin;", f"at = (line + 1) * {places};",
            *self.scale_of_place(), *self.emitter.fixed_lines,
            "// Of a sector, elements that come before the tile's first position.",
            f"const unsigned before = {self._before()};",
            *self.table.steps("low", "high", self._column(), READ), *self._rescaled()]
        return ["const int g = group;",
                f"const {kind} begin = {self.name}_ordinal(first_row, phase_class);",
                f"const {kind} end = {self.name}_ordinal(first_row + {self.height * SUBTILE_ROWS}, phase_class);",
                *self.part(32),
                *self.table.begins("low"), f"for ({kind} at = begin; at < end;) {{", *indent(segment), "}"]

    def _typed(self, number: int) -> str:
        return f"{number}LL" if self.kind == "long long" else str(number)

    @property
    def _elements(self) -> int:
        """Elements of the first output in a sector."""
        return _SECTOR // _BYTES[self.kernel.output_dtypes[self.stores[0].buffer]]

    @property
    def _store(self) -> Index:
        """Where the first output's elements are, over runs."""
        stores = collapsed(self.stores[:1], self.kernel, self.outer)
        assert stores is not None  # of `_outer`
        return stores[0].index

    def _before(self) -> str:
        """Elements from the begin of a sector to the tile's first position of a run, of column 0; a multiple of
        sectors more."""
        index = self._store
        strides = (*index.strides[:2], 0, *index.strides[3:-1], 0)
        return f"unsigned({self.emitter.site.base(replace(index, strides=strides))}) + begin_d"

    def _column(self) -> list[str]:
        """The statements that store column ``o`` of a run."""
        elements, across = self._elements, 32 * self.lanes
        step = self._store.strides[2] % elements
        of_column = f"(before + {times('o', step, 'u' if step > 1 else '')})" if step else "before"
        lane = self.layout.of_thread(POSITION)
        scale = ["const float scale = row_scale * column_scale[v];"] * self.geometry.scaled
        longest = min(self.positions, self.ordinals)
        full, most = -(-longest // across), -(-(longest + elements - self.lanes) // across)
        body = ["const int d = first_d + k * " + f"{across} + {lane};", "if (d >= begin_d && d < end_d) {",
                *indent([*self._sums(), *straight(self.emitter)]), "}"]
        lines = [*self.own_columns(), *scale, f"const int first_d = begin_d - int({of_column} % {elements}u);"]
        lines += ["#pragma unroll", f"for (int k = 0; k < {full}; ++k) {{", *indent(body), "}"]
        if most > full:
            lines += [f"if (first_d + {full * across} < end_d) {{", f"  constexpr int k = {full};", *indent(body), "}"]
        return lines

    def _sums(self) -> list[str]:
        """Define ``sum``, scaled."""
        at = f"sums + (o - first_column) * {self.strides[1]} + shift + d"
        times = " * scale" * self.geometry.scaled
        if self.lanes == 1:
            return [f"const float sum = *({at}){times};"]
        return [f"const float2 both = *reinterpret_cast<const float2*>({at});",
                f"const float sum[{PAIR}] = {{both.x{times}, both.y{times}}};"]

    def _rescaled(self) -> list[str]:
        """Rewrite elements of the run whose scales leave the fast path."""
        if not self.geometry.scaled:
            return []
        value = f"sums[(o - first_column) * {self.strides[1]} + shift + d]"
        return ["if (fast) continue;", "__syncwarp();  // Other lanes rewrite these elements.",
                "#pragma unroll 1", "for (int o = low; o < high; ++o) {",
                "#pragma unroll 1", "  for (int d = begin_d + thread % 32; d < end_d; d += 32) {",
                *indent(self.rewrite(value, "d"), 4), "  }", "}"]
