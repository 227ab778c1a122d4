"""The epilogue of convolutions whose lines are whole sectors of memory: from registers to memory, not by way of a slab.

The sums of a product on wgmma lie in registers so that 8 lanes have 8 neighbouring rows of a column, and 4 such groups
4 pairs of columns. Both output phases of 8 rows are 64 bytes of a line, 8 positions without a stride 32: whole sectors
of memory, if lines begin at multiples of a sector, in memory and among rows. So lines take as many rows as that asks
for (`packed_layout`), a few more than they would (258 become 264; with both phases 129 become 132), and no warp
ever shares a sector with another.

Nothing waits for other warps, nothing is written to shared memory and read from it again, which takes two barriers, 1.5
instructions and the latency of both for each element; what a slab takes of shared memory is there for more stages. Of a
thread's elements, two for a store of both phases, each takes a multiplication by its scale, what the expressions take,
and half a store. Two teams have too few warps to hide what stands between products and stores: of 128 x 64 x 256 x 256
results of a transposed convolution, in ms of an H200, the products alone took 0.31, with sums written to shared memory
0.39, all but the stores 0.54, and all of it 0.74, where memory takes 0.52.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.store_neighbours import PAIR, PairEmitter
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import Walk, stores_channels, write_stores
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    emitter_of,
    entry_type,
    ordinary_stores,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SLAB_ROWS, Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction import Contraction

#: Float32 elements of a sector of memory.
SECTOR = 8


def stores_fragments(kernel: Contraction, phases: int) -> bool:
    """Whether what a kernel stores of tiles of so many phases of the last axis lies in lines that are whole sectors."""
    if not kernel.axes or kernel.axes[-1].out_stride != phases or kernel.all_reductions or stores_channels(kernel):
        return False
    *sizes, line = kernel.domain
    return line % SECTOR == 0 and all(
        kernel.output_dtypes[store.buffer] == "float32" and store.index.strides[-1] == 1
        and store.index.offset % SECTOR == 0
        and all(stride % SECTOR == 0 or size == 1
                for stride, size in zip(store.index.strides[:-1], sizes, strict=True))
        for store in ordinary_stores(kernel))


class FragmentWalk(Walk):
    """The threads of a warpgroup finish and store their own sums, of all rows of the tile that it multiplies.

    ``sums[set][4 * j + 2 * h + e]`` is that of row ``thread / 32 * 16 + thread % 32 / 4 + 8 * h`` of a set of 64, and
    of column ``8 * j + thread % 4 * 2 + e``. With two output phases the sets of the second come behind those of the
    first. Raises ValueError unless `stores_fragments`.
    """

    comment = "a thread takes the sums that it has"
    support = frozenset({"tensor_core"})

    def __init__(self, geometry: Geometry, name: str) -> None:
        kernel, tiling = geometry.kernel, geometry.tiling
        if not stores_fragments(kernel, tiling.phases):
            raise ValueError(f"{name}: no lines of whole sectors: {tiling}")
        super().__init__(geometry, name)
        self.columns, self.products = tiling.columns, Layout(geometry, 0).products
        self.sets, self.both = self.products * tiling.phases, tiling.phases == 2
        self.column_table = ColumnTable(geometry, name, tuple(store.expression for store in self.stores), entries=True)
        stores = self.table.stores(self.stores)
        walked = tuple(a for a in range(len(self.names)) if a != 1)
        self.emitter = emitter_of(kernel, kernel.domain, self.names, (), stores, walked=walked,
                                  lane_axis=len(self.names) - 1, lanes=tiling.phases,
                                  kind=PairEmitter if self.both else PointEmitter)
        for number in range(len(self.table.values)):
            self.emitter.reduced[IN_TABLE, number] = f"column{number}"
        write_stores(self.emitter, kernel, stores)

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes between pointers and numbers: no slab is there."""
        return [f"float (&sums)[{self.sets}][{self.columns // 2}]", "float*"]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        rows, scaled = 2 * self.products, self.geometry.scaled
        names = [f"p{a}" for a in range(len(self.kernel.axes))]
        own = [f"const {entry_type(self.kernel)} n = own_n[i];", *(f"const int {p} = own_{p}[i];" for p in names)]
        columns = self.table.names
        each = [f"const float {name} = own_{name}[e];" for name in columns]
        element = [*each, *(["const float scale = row_scale[i] * column_scale;"] * scaled), *self._sum(),
                   *straight(self.emitter)]
        reads = [*(f"const float2 both_{name} = *reinterpret_cast<const float2*>(values + {k * self.columns} + 8 * j);"
                   for k, name in enumerate(columns)),
                 *(f"const float own_{name}[2] = {{both_{name}.x, both_{name}.y}};" for name in columns)]
        first, many = "columns + lane % 4 * 2", self.table.of_entries
        if many:  # the rows of a thread may be of two entries
            reads.insert(0, f"const float* const values = {first} + {self.table.entry('own_n[i]')};")
        body = [
            "const int g = group, lane = thread % 32, warp = thread / 32;", *self.emitter.fixed_lines,
            *[f"const float* const values = {first};"] * (bool(columns) and not many),
            f"{entry_type(self.kernel)} own_n[{rows}];", f"int {', '.join(f'own_{p}[{rows}]' for p in names)};",
            f"bool there[{rows}];",
            *([f"float row_scale[{rows}];", f"bool usual = {self._columns_usual()};"] if scaled else []),
            "#pragma unroll", f"for (int i = 0; i < {rows}; ++i) {{  // the thread's rows", *indent([
                *self._position("i / 2", "i % 2"), f"there[i] = {self._there()};", "own_n[i] = n;",
                *(f"own_{p}[i] = {p};" for p in names), *self._row_scale()]), "}",
            "#pragma unroll", f"for (int j = 0; j < {self.columns // 8}; ++j) {{", *indent([
                *reads * (not many),
                "#pragma unroll", f"for (int i = 0; i < {rows}; ++i) {{", *indent([
                    *reads * many,
                    "if (!there[i]) continue;", *own, "#pragma unroll", "for (int e = 0; e < 2; ++e) {", *indent([
                        "const int o = first_column + 8 * j + lane % 4 * 2 + e;", *self._last_column(),
                        *element]), "}"]), "}"]), "}"]
        return [*body, *self._careful()] if scaled else body

    def _last_column(self) -> list[str]:
        """Leave out columns behind the last one, where the tile's may pass it."""
        ragged = self.kernel.out_channels % self.geometry.tiling.columns
        return [f"if (o >= {self.kernel.out_channels}) continue;"] if ragged else []

    def _sum(self) -> list[str]:
        """Define ``sum``, scaled: of both phases."""
        times = " * scale" * self.geometry.scaled
        first = "sums[i / 2][4 * j + i % 2 * 2 + e]"
        if not self.both:
            return [f"const float sum = {first}{times};"]
        return [f"const float sum[{PAIR}] = {{{first}{times}, "
                f"sums[{self.products} + i / 2][4 * j + i % 2 * 2 + e]{times}}};"]

    def _position(self, set_: str, half: str) -> list[str]:
        """Define ``row``, n and p0, p1, ... (of both phases the first) of a thread's row."""
        lines = [f"const {self.kind} row = first_row + {set_} * {SLAB_ROWS} + warp * 16 + {half} * 8 + lane / 4;",
                 *self.position()]
        if self.both:
            lines[-1] = f"const int p{len(self.kernel.axes) - 1} = u{len(self.kernel.axes) - 1} * 2;"
        return lines

    def _there(self) -> str:
        """The condition that ``row`` has positions."""
        beyond = self.beyond()
        return f"row < {self.geometry.rows}" + (f" && !({beyond})" if beyond else "")

    def _columns_usual(self) -> str:
        """Whether the scales of the tile's columns are usual."""
        return self.table.all_usual

    def _row_scale(self) -> list[str]:
        """Define the scale of a row, and whether it is usual, too."""
        if not self.geometry.scaled:
            return []
        return ["row_scale[i] = 1.0f;", f"if (there[i]) row_scale[i] = {row_scale_text(self.geometry)};",
                f"usual = {self.name}_usual(row_scale[i]) && usual;"]

    def _careful(self) -> list[str]:
        """Write elements again whose scales are not usual.

        This is one copy of long code, which takes registers whose numbers are constants: so the sums move round.
        """
        each = self.columns // 8
        last = f"p{len(self.kernel.axes) - 1}"
        points = ", ".join(["next[0]", *(f"{last} + set / {self.products}" if self.both and name == last else name
                                         for name in self.names)])
        quads = self.sets * each
        return ["if (usual) return;", "#pragma unroll 1", f"for (int quad = 0; quad < {quads}; ++quad) {{", *indent([
            f"const int set = quad / {each};", "float next[4] = {sums[0][0], sums[0][1], sums[0][2], sums[0][3]};",
            "#pragma unroll 1", "for (int e = 0; e < 4; ++e) {", *indent([
                *self._position(f"set % {self.products}", "e / 2"),
                f"const int o = first_column + quad % {each} * 8 + lane % 4 * 2 + e % 2;",
                f"if ({self._there()} && o < {self.kernel.out_channels}) {self.name}_again({points});",
                "next[0] = next[1], next[1] = next[2], next[2] = next[3];"]), "}",
            "#pragma unroll", f"for (int i = 0; i < {4 * quads - 4}; ++i)",
            f"  sums[i / {4 * each}][i % {4 * each}] = sums[(i + 4) / {4 * each}][(i + 4) % {4 * each}];"]), "}"]
