"""Stores from an epilogue subtile, of rows that are neighbours in memory, or of columns that are.

The thread-value layouts, for a subtile of C columns (element (row, phase, column) of a subtile is at
``phases * row + phase + column * (64 * phases + 4)``)::

    positions are neighbours                    row                 columns of a thread
      one phase of output                       thread % 64         C / 2, from thread / 64 * C / 2 on
      one phase, rows are neighbours in pairs   thread % 32 * 2     C / 4, of two rows
      both phases, thread % 2 is a thread's     thread / 2          C
    channels are neighbours                     thread / (C / 4)    4, of every 512 / C-th row

Both phases: of a transposed convolution of stride 2 one phase alone is every other element of a row of the output. Of
both a warp writes 32 neighbouring positions at a time, as it does for convolutions without a stride.

Pairs: where lines have even lengths in memory and in the order of rows, two rows from an even one on are both positions
or neither is, and lie at a multiple of 8 bytes. A warp then reads and writes 64 positions at a time: half as many
reads, stores and scales for each element as where a thread takes a row, and it shares sectors of memory at two ends of
256 bytes, not of 128 (benchmarks/result_stores.py).
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import POSITION
from kernelwright.codegen.cuda.gemm.epilogue.column_table import ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    THREADS,
    UNROLL,
    EpilogueOperation,
    stores_channels,
    write_stores,
)
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    emitter_of,
    guessed,
    lies_at_multiples,
    ordinary_stores,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import column_place, column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.loops.emitter import Buffer, Stored
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.expressions import Expression, Index, Load

#: Neighbours of a thread where rows are neighbours in pairs, and columns of its loop at once.
PAIR, _UNROLL_OF_PAIRS = 2, 8


def in_pairs(geometry: Geometry) -> bool:
    """Whether a thread can take two rows: neighbours in every store, or no positions both."""
    kernel, tiling = geometry.kernel, geometry.tiling
    if not kernel.axes or tiling.parities > 1 or kernel.axes[-1].out_stride > 1 or kernel.axes[-1].out_size % PAIR \
            or geometry.extents[-1] % PAIR:
        return False
    return all(kernel.output_dtypes[store.buffer] == "float32" and store.index.strides[-1] == 1
               and lies_at_multiples(store.index, kernel.domain, PAIR) for store in ordinary_stores(kernel))


class PairEmitter(PointEmitter):
    """A PointEmitter that writes two neighbours at a time, and reads so what lies as evenly as they do."""

    def _stored(self, load: Load, name: str, step: str) -> Stored:
        stored = super()._stored(load, name, step)
        even = load.index.strides[-1] == 1 and lies_at_multiples(load.index, self.site.outer, PAIR)
        if stored.count == PAIR and stored.c_type == "float" and not load.guards and even:
            buffer, both = self.buffers[load.buffer].name, f"both_{name}"
            self.vectors.add(buffer)
            stored.lines = [f"const float2 {both} = *reinterpret_cast<const float2*>({buffer} + "
                            f"({self.site.base(load.index)}));",
                            f"{name}{step}[0] = {both}.x, {name}{step}[1] = {both}.y;"]
        return stored

    def store(self, buffer: Buffer, index: Index, node: Expression) -> None:
        """Write the values of both lanes to an aligned place."""
        text, name = self.value(node), self.fresh("y")
        self.used.add(buffer.name)
        self.vectors.add(buffer.name)
        self.row_lines.append(f"float {name}[{PAIR}];")
        self.lane_lines.append(f"{name}[v] = {text};")
        self.late_lines.append(f"*reinterpret_cast<float2*>({buffer.name} + ({self.site.base(index)})) = "
                               f"make_float2({name}[0], {name}[1]);")


class StorePositions(EpilogueOperation):
    """Positions are neighbours: a thread takes a row of one phase and a part of the columns, or all.

    Raises ValueError for tiles of two phases where channels are neighbours in the output.
    """

    comment = "a thread takes a row, and walks over half of the columns"
    neighbours = 1

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        if self.phases == 2 and stores_channels(self.kernel):
            raise ValueError(f"{name}: no tiles of two phases of positions where channels are neighbours")
        # Fragments of a core's threads lie 8 rows x 4 pairs of columns: 2 * 68, or of two phases, which half a warp
        # writes of 4 rows at a time, 2 * 132, is 8 modulo 32 banks.
        self.strides = (self.phases, self.phases * SUBTILE_ROWS + 4)
        self.floats = self.columns * self.strides[1]
        self.across = self.phases * SUBTILE_ROWS // self.neighbours
        self.layout = self.spread(self.across, self.neighbours)
        self.row_of = self.place = self.layout.of_thread(POSITION)
        if self.phases == 2:
            self.row_of, self.phase_of = "thread / 2", "thread % 2"
            self.comment = "a thread takes one of 128 positions, and walks over columns"
        roots = (*self.stores, *self.kernel.position_reductions)
        self.column_table = ColumnTable(geometry, name, tuple(root.expression for root in roots),
                                        entries=not self.kernel.position_reductions)
        self._emit()

    def _emit(self) -> None:
        """Give the operation an emitter of its stores."""
        self.emitter = self.emitter_with(self.table)
        write_stores(self.emitter, self.kernel, self.table.stores(self.stores))

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        lines = ["const int g = group;", f"const {self.kind} row = first_row + {self.row_of};",
                 f"if (row >= {self.geometry.rows}) return;", *self.position("return")]
        if self.phases == 2:
            return [*lines, f"const int last = {self.end(f'first_column + {self.columns}')};",
                    *self.finished("first_column")]
        return [*lines, *self.part(self.across), *self.finished("first")]

    def finished(self, first: str) -> list[str]:
        """The statements that finish the columns from ``first`` to ``last`` of a thread's row."""
        scaled, unscaled = self.geometry.scaled, f"sums[{self.place} + (o - first_column) * {self.strides[1]}]"
        lines = [*self.table.begins(first), *self.scale_lines(), *self.emitter.fixed_lines]
        lines += self.step(first, unscaled)
        if scaled:
            lines += ["if (fast) return;", "#pragma unroll 1", *self.once_more(first, unscaled)]
        return lines

    def step(self, first: str, unscaled: str) -> list[str]:
        """The loop over a thread's columns. unscaled: the sum of a column."""
        times = " * (row_scale * column_scale[v])" * self.geometry.scaled
        return self.table.steps(first, "last", [f"const float sum = {unscaled}{times};", *straight(self.emitter)],
                                UNROLL)

    def once_more(self, first: str, unscaled: str) -> list[str]:
        """Rewrite columns whose scales leave the fast path."""
        return [f"for (int o = {first}; o < last; ++o) {self.name}_rewrite({unscaled}, {', '.join(self.names)});"]


class StorePairs(StorePositions):
    """Rows are neighbours in pairs: a thread takes two rows, and a quarter of the columns. Only where `in_pairs`."""

    comment = "a thread takes two neighbouring rows, and walks over a quarter of the columns"
    neighbours = PAIR

    def _emit(self) -> None:
        stores = self.table.stores(self.stores)
        self.emitter = emitter_of(self.kernel, self.kernel.domain, self.names, (), stores, walked=(2,),
                                  lane_axis=len(self.names) - 1, lanes=PAIR, kind=PairEmitter)
        self.name_columns(self.emitter, "own_column{}")
        write_stores(self.emitter, self.kernel, stores)

    def step(self, first: str, unscaled: str) -> list[str]:
        """The loop over a thread's columns."""
        scaled = self.geometry.scaled
        return self.table.steps(first, "last", [
            *self.own_columns(), *["const float scale = row_scale * column_scale[v];"] * scaled,
            f"const float2 both = *reinterpret_cast<const float2*>(&{unscaled});",
            "const float sum[2] = {both.x * scale, both.y * scale};" if scaled else
            "const float sum[2] = {both.x, both.y};", *straight(self.emitter)], _UNROLL_OF_PAIRS)

    def once_more(self, first: str, unscaled: str) -> list[str]:
        """Rewrite both rows of columns whose scales leave the fast path."""
        points = ", ".join([*self.names[:-1], f"{self.names[-1]} + v"])
        return [f"for (int o = {first}; o < last; ++o)", *indent([
            "#pragma unroll 1", f"for (int v = 0; v < {PAIR}; ++v) {self.name}_rewrite((&{unscaled})[v], {points});"])]


class StoreChannels(EpilogueOperation):
    """Channels are neighbours: a thread takes 4 columns (1 where 4 do not divide them), and every so many rows."""

    comment = "a thread takes neighbouring columns, and walks over rows"

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        # Rows of a core's fragments fall 8 or 24 banks apart; reads are contiguous.
        pitch = self.columns + (8 - self.columns) % 16
        self.strides = (pitch, 1)
        self.floats = SUBTILE_ROWS * pitch
        self.lanes = 4 if self.kernel.out_channels % 4 == 0 else 1
        walked = tuple(a for a in range(len(self.names)) if a not in (1, 2))
        self.emitter = emitter_of(self.kernel, self.kernel.domain, self.names, (), self.kernel.stores, walked=walked,
                                  lane_axis=2, lanes=self.lanes)
        write_stores(self.emitter, self.kernel, self.kernel.stores)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        kernel, lanes, scaled, name = self.kernel, self.lanes, self.geometry.scaled, self.name
        across = self.columns // lanes
        down = THREADS // across
        lines = ["const int g = group;"]
        if across * down < THREADS:
            lines.append(f"if (thread >= {across * down}) return;")
        times = f" * {lanes}" if lanes > 1 else ""
        lines += [f"const int o = first_column + thread % {across}{times};",
                  f"if (o >= {kernel.out_channels}) return;",
                  f"const int last = min({SUBTILE_ROWS}LL, {self.geometry.rows} - first_row);"]
        if scaled and lanes > 1:
            signs = guessed(self.geometry, "right")
            lines += [f"float column_scale[{lanes}];",
                      f"kw_read4(column_scale, right_scales + {column_place(self.geometry)});", "bool fast = true;",
                      "#pragma unroll", f"for (int v = 0; v < {lanes}; ++v) {{",
                      *["  column_scale[v] = fabsf(column_scale[v]);"] * signs,
                      f"  fast = {name}_is_fast(column_scale[v]) && fast;", "}"]
        elif scaled:
            lines += [f"const float column_scale = {column_scale_text(self.geometry)};",
                      f"bool fast = {name}_is_fast(column_scale);"]
        unscaled = f"sums[r * {self.strides[0]} + o - first_column]"
        position = [f"const {self.kind} row = first_row + r;", *self.position("continue")]
        step = list(position)
        if scaled:
            step += [f"const float row_scale = {row_scale_text(self.geometry)};",
                     f"fast = {name}_is_fast(row_scale) && fast;"]
        if lanes > 1:
            step += [f"float sum[{lanes}];", f"kw_read4(sum, &{unscaled});"]
            if scaled:
                step += ["#pragma unroll",
                         f"for (int v = 0; v < {lanes}; ++v) sum[v] *= row_scale * column_scale[v];"]
        else:
            step.append(f"const float sum = {unscaled}{' * (row_scale * column_scale)' * scaled};")
        loop = f"for (int r = thread / {across}; r < last; r += {down}) {{"
        lines += [*self.emitter.fixed_lines, f"#pragma unroll {4 if kernel.axes else 8}", loop,
                  *indent([*step, *straight(self.emitter)]), "}"]
        if scaled:
            points = ", ".join("o + v" if axis == "o" and lanes > 1 else axis for axis in self.names)
            shifted = f"sums[r * {self.strides[0]} + o + v - first_column]" if lanes > 1 else unscaled
            call = f"{name}_rewrite({shifted}, {points});"
            if lanes > 1:
                call = f"for (int v = 0; v < {lanes}; ++v) {call}"
            lines += ["if (fast) return;", "#pragma unroll 1", loop,
                      *indent([*position, *(["#pragma unroll 1"] if lanes > 1 else []), call]), "}"]
        return lines
