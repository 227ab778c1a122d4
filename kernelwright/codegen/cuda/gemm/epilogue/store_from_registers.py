"""Stores from wgmma's registers, where lines are whole sectors of memory.

The sums of a product on wgmma lie in registers so that 8 lanes have 8 neighbouring rows of a column, and 4 such groups
4 pairs of columns. Both output phases of 8 rows are 64 bytes of a line, 8 positions without a stride 32: whole sectors
of memory, if lines begin at multiples of a sector, in memory and among rows. So lines take as many rows as that asks
for (`packed_layout`), a few more than they would (258 become 264; with both phases 129 become 132), and no warp
ever shares a sector with another.

Nothing waits for other warps, and nothing is written to shared memory and read from it again; what a subtile takes of
it is there for more stages. (benchmarks/notes/contractions.md, "Epilogues", has what that took.)
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION
from kernelwright.codegen.cuda.gemm.epilogue.collective import every_sum
from kernelwright.codegen.cuda.gemm.epilogue.column_table import ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.store import PAIR, PairEmitter
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import EpilogueOperation, stores_channels, write_stores
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    emitter_of,
    entry_type,
    lies_at_multiples,
    ordinary_stores,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import row_scale_text
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import modulo, over, plus
from kernelwright.plan.contraction.record import Contraction

#: Float32 elements of a sector of memory.
SECTOR = 8


def stores_fragments(kernel: Contraction, phases: int) -> bool:
    """Whether what a kernel stores of tiles of so many phases of the last axis lies in lines that are whole sectors."""
    if not kernel.axes or kernel.axes[-1].out_stride != phases or kernel.all_reductions or stores_channels(kernel):
        return False
    return kernel.domain[-1] % SECTOR == 0 and all(
        kernel.output_dtypes[store.buffer] == "float32" and store.index.strides[-1] == 1
        and lies_at_multiples(store.index, kernel.domain, SECTOR) for store in ordinary_stores(kernel))


class StoreFromRegisters(EpilogueOperation):
    """The threads of a warpgroup finish and store their own sums, of all rows of the tile that it multiplies.

    Raises ValueError unless `stores_fragments`.
    """

    comment = "a thread takes the sums that it has"
    support = frozenset({"tensor_core"})
    in_registers = True

    def __init__(self, geometry: Geometry, name: str) -> None:
        kernel, tiling = geometry.kernel, geometry.tiling
        if not stores_fragments(kernel, tiling.parities):
            raise ValueError(f"{name}: no lines of whole sectors: {tiling}")
        super().__init__(geometry, name)
        self.hold_tile()
        self.both = self.phases == 2
        self.column_table = ColumnTable(geometry, name, tuple(store.expression for store in self.stores), entries=True)
        stores = self.table.stores(self.stores)
        walked = tuple(a for a in range(len(self.names)) if a != 1)
        self.emitter = emitter_of(kernel, kernel.domain, self.names, (), stores, walked=walked,
                                  lane_axis=len(self.names) - 1, lanes=tiling.parities,
                                  kind=PairEmitter if self.both else PointEmitter)
        self.name_columns(self.emitter, "column{}")
        write_stores(self.emitter, kernel, stores)

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes between pointers and numbers: no subtile is there."""
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
        places = {name: plus("values", k * self.columns, "8 * j") for k, name in enumerate(columns)}
        reads = [*(f"const float2 both_{name} = *reinterpret_cast<const float2*>({place});"
                   for name, place in places.items()),
                 *(f"const float own_{name}[2] = {{both_{name}.x, both_{name}.y}};" for name in columns)]
        column = self.layout.text(CHANNEL, block="j", quad="lane % 4", pair="e")
        first, many = "columns + lane % 4 * 2", self.table.of_entries
        if many:  # the rows of a thread may be of two entries
            reads.insert(0, f"const float* const values = {first} + {self.table.entry('own_n[i]')};")
        body = [
            "const int g = group, lane = thread % 32, warp = thread / 32;", *self.emitter.fixed_lines,
            *[f"const float* const values = {first};"] * (bool(columns) and not many),
            f"{entry_type(self.kernel)} own_n[{rows}];", f"int {', '.join(f'own_{p}[{rows}]' for p in names)};",
            f"bool in_bounds[{rows}];",
            *([f"float row_scale[{rows}];", f"bool fast = {self.table.all_fast};"] if scaled else []),
            "#pragma unroll", f"for (int i = 0; i < {rows}; ++i) {{  // the thread's rows", *indent([
                *self._position("i / 2", "i % 2"), f"in_bounds[i] = {self.in_bounds()};", "own_n[i] = n;",
                *(f"own_{p}[i] = {p};" for p in names), *self._row_scale()]), "}",
            "#pragma unroll", f"for (int j = 0; j < {self.columns // 8}; ++j) {{", *indent([
                *reads * (not many),
                "#pragma unroll", f"for (int i = 0; i < {rows}; ++i) {{", *indent([
                    *reads * many,
                    "if (!in_bounds[i]) continue;", *own, "#pragma unroll", "for (int e = 0; e < 2; ++e) {", *indent([
                        f"const int o = first_column + {column};", *self._last_column(),
                        *element]), "}"]), "}"]), "}"]
        return [*body, *self._rescaled()] if scaled else body

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
        place = self.layout.text(POSITION, set=set_, warp="warp", half=half, row="lane / 4")
        return [f"const {self.kind} row = first_row + {place};", *self.position(phase="")]

    def _row_scale(self) -> list[str]:
        """Define the scale of a row, and whether it is of the fast path, too."""
        if not self.geometry.scaled:
            return []
        return ["row_scale[i] = 1.0f;", f"if (in_bounds[i]) row_scale[i] = {row_scale_text(self.geometry)};",
                f"fast = {self.name}_is_fast(row_scale[i]) && fast;"]

    def _rescaled(self) -> list[str]:
        """Rewrite elements whose scales leave the fast path."""
        each = self.columns // 8
        last = f"p{len(self.kernel.axes) - 1}"
        phase = over("set", self.products)
        points = ", ".join(["next[0]", *(f"{last} + {phase}" if self.both and name == last else name
                                         for name in self.names)])
        column = self.layout.text(CHANNEL, block=modulo("quad", each), quad="lane % 4", pair="e % 2")
        return ["if (fast) return;", *every_sum(
            self.sets, 4 * each, "quad", [f"const int set = {over('quad', each)};"], [
                *self._position(modulo("set", self.products), "e / 2"), f"const int o = first_column + {column};",
                f"if ({self.in_bounds()} && o < {self.kernel.out_channels}) {self.name}_rewrite({points});"],
                keep=False)]
