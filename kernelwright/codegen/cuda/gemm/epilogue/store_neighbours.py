"""The epilogue of convolutions whose rows of a slab are neighbouring positions, two by two: a thread takes two of them.

Where lines have even lengths in memory and in the order of rows, two rows from an even one on are both positions or
neither is, and lie at a multiple of 8 bytes. A warp then reads and writes 64 positions at a time: half as many reads,
stores and scales for each element as where a thread takes a row, and of the 32 bytes that memory takes as one a warp
shares those at two ends of 256 bytes, not of 128 (benchmarks/result_stores.py on an H200: 2.3 TB/s for 1.5 of lines of
254). Tiles need no overlap for that, as they do for whole sectors (`epilogue.store_overlapped`).
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, READ, ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import THREADS, RowWalk, Walk, write_stores
from kernelwright.codegen.cuda.gemm.points import PointEmitter, emitter_of, ordinary_stores, straight
from kernelwright.codegen.cuda.gemm.problem import SLAB_ROWS, Geometry
from kernelwright.codegen.cuda.loops.emitter import Buffer, Stored
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.expressions import Expression, Index, Load

#: Neighbours of a thread, threads across a slab, and columns of a walk at once.
PAIR, _ACROSS, _UNROLL = 2, SLAB_ROWS // 2, 8


def in_pairs(geometry: Geometry) -> bool:
    """Whether a thread can take two rows: neighbours in every store, or no positions both."""
    kernel, tiling = geometry.kernel, geometry.tiling
    if not kernel.axes or tiling.phases > 1 or kernel.axes[-1].out_stride > 1 or kernel.axes[-1].out_size % PAIR \
            or geometry.extents[-1] % PAIR:
        return False
    sizes = kernel.domain
    return all(kernel.output_dtypes[store.buffer] == "float32" and store.index.strides[-1] == 1
               and store.index.offset % PAIR == 0
               and all(stride % PAIR == 0 or size == 1 for stride, size in zip(store.index.strides, sizes[:-1]))
               for store in ordinary_stores(kernel))


class PairEmitter(PointEmitter):
    """A PointEmitter that writes two neighbours at a time, and reads so what lies as evenly as they do."""

    def _stored(self, load: Load, name: str, step: str) -> Stored:
        stored = super()._stored(load, name, step)
        if stored.count == PAIR and stored.c_type == "float" and not load.guards and self._is_even(load.index):
            buffer, both = self.buffers[load.buffer].name, f"both_{name}"
            self.vectors.add(buffer)
            stored.lines = [f"const float2 {both} = *reinterpret_cast<const float2*>({buffer} + "
                            f"({self.site.base(load.index)}));",
                            f"{name}{step}[0] = {both}.x, {name}{step}[1] = {both}.y;"]
        return stored

    def _is_even(self, index: Index) -> bool:
        """Whether an index is even at the first of any two neighbours, and they are neighbours in memory."""
        *strides, last = index.strides
        return last == 1 and index.offset % PAIR == 0 and all(
            stride % PAIR == 0 or size == 1 for stride, size in zip(strides, self.site.outer, strict=False))

    def store(self, buffer: Buffer, index: Index, node: Expression) -> None:
        """Write the values of both lanes to an aligned place."""
        text, name = self.value(node), self.fresh("y")
        self.used.add(buffer.name)
        self.vectors.add(buffer.name)
        self.row_lines.append(f"float {name}[{PAIR}];")
        self.lane_lines.append(f"{name}[v] = {text};")
        self.late_lines.append(f"*reinterpret_cast<float2*>({buffer.name} + ({self.site.base(index)})) = "
                               f"make_float2({name}[0], {name}[1]);")


class PairOfRowsWalk(RowWalk):
    """Positions are neighbours: a thread takes two rows, and a quarter of the columns. Only where `in_pairs`."""

    comment = "a thread takes two neighbouring rows, and walks over a quarter of the columns"
    row_of = f"thread % {_ACROSS} * {PAIR}"

    def __init__(self, geometry: Geometry, name: str) -> None:
        Walk.__init__(self, geometry, name)
        self.strides = (1, SLAB_ROWS + 4)
        self.floats = self.columns * (SLAB_ROWS + 4)
        self.column_table = ColumnTable(geometry, name, tuple(store.expression for store in self.stores), entries=True)
        stores = self.table.stores(self.stores)
        self.emitter = emitter_of(self.kernel, self.kernel.domain, self.names, (), stores, walked=(2,),
                                  lane_axis=len(self.names) - 1, lanes=PAIR, kind=PairEmitter)
        for number in range(len(self.table.values)):
            self.emitter.reduced[IN_TABLE, number] = f"own_column{number}"
        write_stores(self.emitter, self.kernel, stores)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        part = -(-self.columns // (THREADS // _ACROSS * READ)) * READ
        lines = ["const int g = group;", f"const {self.kind} row = first_row + {self.row_of};",
                 f"if (row >= {self.geometry.rows}) return;", *self.position("return"),
                 f"const int first = first_column + thread / {_ACROSS} * {part};",
                 f"const int last = {self._last(part)};", *self.table.begins("first"), *self.scale_lines(),
                 *self.emitter.fixed_lines]
        at = f"sums[{self.row_of} + (o - first_column) * {self.strides[1]}]"
        scale = ["const float scale = row_scale * column_scale[v];"] * self.geometry.scaled
        times = " * scale" * self.geometry.scaled
        step = [*(f"const float own_column{k} = column{k}[v];" for k in range(len(self.table.values))), *scale,
                f"const float2 both = *reinterpret_cast<const float2*>(&{at});",
                f"const float sum[{PAIR}] = {{both.x{times}, both.y{times}}};", *straight(self.emitter)]
        lines += self.table.steps("first", "last", step, _UNROLL)
        if not self.geometry.scaled:
            return lines
        points = ", ".join([*self.names[:-1], f"{self.names[-1]} + v"])
        return [*lines, "if (usual) return;", "#pragma unroll 1", "for (int o = first; o < last; ++o)", *indent([
            "#pragma unroll 1", f"for (int v = 0; v < {PAIR}; ++v) {self.name}_again((&{at})[v], {points});"])]

    def _last(self, part: int) -> str:
        """The column behind a thread's last one: that of its part, of the slab or of the kernel."""
        text = f"first + {part}"
        if THREADS // _ACROSS * part > self.columns:
            text = f"min({text}, first_column + {self.columns})"
        return self.end(text)
