"""The epilogue of a contraction on wgmma that writes nothing but totals: they are taken from the registers of its sums.

Where results of positions are stored as well, sums go through shared memory, so that neighbouring threads write
neighbouring positions (`epilogue.reduce_positions`). Totals need no such order. That way a mean cost some 25
instructions for each element (H200: 0.54 of 0.91 ms of a convolution of 8 to 64 channels in fp16), nearly all of them
for finding, writing and reading what the registers held to begin with.

Here a thread evaluates the expressions of its own sums, of two rows of each product of 64, and takes all of these of a
column together. The 8 lanes of a warp that share columns halve what they hold in each of three steps: a lane keeps one
half of the columns, gives away the other, and takes that half of what its partner gives; 8 columns cost 7 shuffles
instead of 24. The 4 warps meet in shared memory. For a mean of 128 rows and 64 columns, for each element:

    multiply by the scale and add, masked        1    (sums of fp16: one predicated instruction)
    start, and scales of columns                 0.6  (a choice, a multiplication, half a read of a column: 4 elements)
    7 shuffles, 14 choices, 7 additions          0.9  (of 8 columns of 4 rows)
    which rows are positions, cells, the warps   2    (some 125 for a tile's 64 elements of a thread)

In what ptxas makes of it (sm_90a) these are 290 instructions for 64 elements, and 448 for the 128 of 128 columns.

All rows of a warpgroup's tile that belong to one n make one partial result. It goes to the cell of the first slab that
meets this n; the tile's other cells have no positions, and `epilogue.finalize` skips these. Where n changes within the
tile's rows all of this is done for each n, with masks that say which rows are its positions: a scale of x is the same
for all of them.

Moments are of what values differ from a number near them, as in `epilogue.reduce_positions`: the mean of the first
run of 8 rows of each warp that has positions. So a part of the sums is evaluated twice, and the number comes back to
all threads before the walk over all. (The mean of all rows took a walk over all for itself.)
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_across_warps import THERE, THREADS, WARPS, WarpTotals
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import operand_pointers
from kernelwright.codegen.cuda.gemm.points import entry_type, ordinary_stores
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SLAB_ROWS, Geometry
from kernelwright.codegen.cuda.loops.site import indent

#: Of the barriers of a part of a block: behind those of the cores.
_BARRIER = 8

# What stands in a core in place of the way through shared memory; ``@NAME@`` as in `mainloop.sm90.text`.
RESULTS_IN_REGISTERS = """
      // From registers to totals.
#pragma unroll
      for (int p = 0; p < @ALL_SUMS@; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;
      @NAME@_finish(@ARGUMENTS@sums, slab@COLUMN_TABLE@, thread, phase_class, group,
                    row_block * (1LL * ROWS) + part_row, column_block * COLUMNS);"""


def in_registers(geometry: Geometry) -> bool:
    """Whether totals are taken from registers: on wgmma, where nothing is stored for each position."""
    kernel, tiling = geometry.kernel, geometry.tiling
    return bool(kernel.totals) and not ordinary_stores(kernel) and tiling.core == "wgmma" and tiling.split == 1


class ReducePositionsInRegisters(WarpTotals):
    """The threads of a warpgroup take their own sums, of all rows of the tile that it multiplies. See `WarpTotals`.

    ``sums[set][4 * j + 2 * h + e]`` is that of row ``thread / 32 * 16 + thread % 32 / 4 + 8 * h`` of a set of 64, and
    of column ``8 * j + thread % 4 * 2 + e``. With two output phases the sets of the second come behind those of the
    first.
    """

    comment = "for totals alone, from registers"
    parameters = (("float* __restrict__", "slab_totals"), ("int* __restrict__", "slab_positions"))
    support = frozenset({"tensor_core"})

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes between pointers and numbers."""
        return [f"float (&sums)[{self.sets}][{self.columns // 2}]", "float* __restrict__ met"]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        geometry, kind, products = self.geometry, self.kind, self.products
        pitch, unsigned = geometry.pitches[0], "unsigned" if kind == "int" else "(unsigned long long)"
        wide, many = ("long long", "LL") if geometry.cells >= 2**31 else ("int", "")
        entry = entry_type(self.kernel)
        first, second = self.first_walk(), self.second_walk()  # before the emitter's lines are read
        return [
            "const int g = group, lane = thread % 32, warp = thread / 32;", *self.emitter.fixed_lines,
            f"const {kind} begin = first_row, last = min(begin + {SLAB_ROWS * products - 1}, "
            f"{geometry.rows - 1}{'LL' * (kind != 'int')});",
            f"const {entry} first_n = {unsigned}(begin) / {pitch}u, last_n = {unsigned}(last) / {pitch}u;",
            f"const {wide} first_cell = (phase_class * {geometry.slabs}{many} + begin / {SLAB_ROWS}) * 2;",
            "int positions = 0;  // of cell number `thread` of these rows: none, but where an n begins",
            "#pragma unroll 1",
            f"for ({entry} of_n = first_n; of_n <= last_n; ++of_n) {{  // one, but where n changes within the rows",
            *indent([*self._places(), f"const {entry} n = of_n;", *self._own_positions(), *self._scale(),
                     f"int* const counts = reinterpret_cast<int*>(met + {self.counts});", *self._runs(),
                     f"{self._meet}  // What was in `met` has been read, and the table is there.", *self._run(),
                     *self._usual(), f"if (lane == 0) counts[warp] = {self._positions('places')};",
                     *[f"if (thread == 0) counts[{WARPS}] = first_column;"] * bool(second),
                     *first, f"{self._meet}  // The warps' results are there.", *self._cell(), *self.write(False),
                     *self._again(second)]), "}",
            f"if (thread < {2 * products} && group == 0 && first_column == 0) "
            "slab_positions[first_cell + thread] = positions;"]

    def _again(self, walk: list[str]) -> list[str]:
        """The second walk, where there is one. What it computes again looks new to the compiler, which would keep all
        of it in registers otherwise."""
        if not walk:
            return []
        return [f"{self._meet}  // The means are there.", "// As if these were others: no value is kept for so long.",
                "#pragma unroll", f"for (int set = 0; set < {self.sets}; ++set) kw_wgmma_hold(sums[set]);",
                f"const int first_column = counts[{WARPS}];", *walk, f"{self._meet}  // So is the rest.",
                *self.write(True)]

    @property
    def _meet(self) -> str:
        """The barrier of the warpgroup."""
        return f"kw_part_sync({_BARRIER} + threadIdx.x / {THREADS}, {THREADS});"

    def _positions(self, words: str) -> str:
        """The text of how many bits some words have."""
        return " + ".join(f"__popc({words}[{w}])" for w in range(-(-self.sets // 2)))

    def _place(self, row: str, phase: str) -> tuple[list[str], str]:
        """Statements that define n and p0, p1, ... of a row, and the condition that it is a position."""
        lines = [f"const {self.kind} row = first_row + {row};", *self.position(phase=phase)]
        there = [f"row < {self.geometry.rows}", *([f"!({beyond})"] if (beyond := self.beyond()) else [])]
        if self.odd_size:
            there.append(f"{self.names[-1]} < {self.odd_size}")
        return lines, " && ".join(there)

    def _row(self, set_: str, within: str) -> str:
        """A row of the warp, counted from the first one of the tile."""
        several = self.products > 1
        place = f"{set_} % {self.products} * {SLAB_ROWS} + " if self.sets > self.products and several else \
            f"{set_} * {SLAB_ROWS} + " if several else ""
        return f"{place}warp * 16 + {within}"

    def _places(self) -> list[str]:
        """Define ``places``, a bit for each row of the warp, and ``mine``, the same from the thread's first row on."""
        lines, there = self._place(self._row("set", "lane % 16"), f"set / {self.products}")
        words = -(-self.sets // 2)
        if self.sets % 2:
            there = f"set < {self.sets} && {there}"
        return [
            "// Which of the warp's rows are positions of it: a lane looks at one of 16 in each second set.",
            f"unsigned places[{words}];", "#pragma unroll", f"for (int w = 0; w < {words}; ++w) {{", *indent([
                "const int set = 2 * w + lane / 16;", *lines,
                f"places[w] = __ballot_sync(0xffffffffu, n == of_n && {there});"]), "}",
            f"unsigned mine[{words}];  // of the thread's: bits 0 and 8 of a set, 16 and 24 of the next",
            "#pragma unroll",
            f"for (int w = 0; w < {words}; ++w) mine[w] = places[w] >> lane / 4;"]

    def _runs(self) -> list[str]:
        """Tell the other warps how many positions each run of 8 rows has. They look between two barriers, so that
        nobody writes while somebody looks."""
        if not self.has_moments:
            return []
        counts = [f"__popc(places[{run // 4}] >> {run % 4 * 8} & 0xffu) << {4 * run}" for run in range(2 * self.sets)]
        return ["// The positions of each run of 8 rows, four bits each.",
                f"if (lane == 0) counts[{2 * WARPS} + warp] = {' | '.join(counts)};"]

    def _run(self) -> list[str]:
        """Define ``run``, the first one in which some warp has a position, and ``of_run``, how many all have."""
        if not self.has_moments:
            return []
        words = [f"counts[{2 * WARPS + warp}]" for warp in range(WARPS)]
        return [f"const int run = max(__ffs({' | '.join(words)}) - 1, 0) / 4;",
                f"const int of_run = {' + '.join(f'({word} >> 4 * run & 15)' for word in words)};"]

    def _own_positions(self) -> list[str]:
        """Define ``at0``, ``at1``, ...: the thread's positions, 0 where there are none, so that loads stay inside."""
        if not self.moved:
            return []
        lines, _ = self._place(self._row("set", "h * 8 + lane / 4"), f"set / {self.products}")
        return [
            f"int {', '.join(f'at{a}[{self.sets}][2]' for a in self.moved)};", "#pragma unroll",
            f"for (int i = 0; i < {2 * self.sets}; ++i) {{", "  const int set = i / 2, h = i % 2;", *indent([
                *lines, *(f"at{a}[set][h] = {THERE} ? p{a} : 0;" for a in self.moved)]), "}"]

    def _scale(self) -> list[str]:
        """Define ``row_scale``, that of n."""
        return [f"float row_scale = {row_scale_text(self.geometry)};"] * self.geometry.scaled

    def _usual(self) -> list[str]:
        """Where scales are not usual: scale the sums in place, with care, and put ones in place of the scales.

        This is one copy of long code, which takes registers whose numbers are constants: so the sums move round.
        """
        if not self.geometry.scaled:
            return []
        each, kernel = self.columns // 8, self.kernel
        lines, there = self._place(self._row("set", "e / 2 * 8 + lane / 4"), f"set / {self.products}")
        points = ", ".join([*operand_pointers(kernel), "next[0]", "row_scale", column_scale_text(self.geometry),
                            *self.names])
        quads = self.sets * each
        return [*self.table.usual("row_scale"), "const float* scales = columns;",
                "if (!usual) {  // With care, in place: all sums move round.", *indent([
            f"for (int c = thread; c < {self.columns}; c += {THREADS}) met[{self.ones} + c] = 1.0f;",
            "#pragma unroll 1", f"for (int quad = 0; quad < {quads}; ++quad) {{", *indent([
                f"const int set = quad / {each};", "float next[4] = {sums[0][0], sums[0][1], sums[0][2], sums[0][3]};",
                "#pragma unroll 1", "for (int e = 0; e < 4; ++e) {", *indent([
                    *lines, f"const int o = first_column + quad % {each} * 8 + lane % 4 * 2 + e % 2;",
                    "float value = next[0];",
                    f"if (n == of_n && o < {kernel.out_channels} && {there})",
                    f"  value = {self.name}_careful({points});",
                    "next[0] = next[1], next[1] = next[2], next[2] = next[3], next[3] = value;"]), "}",
                "#pragma unroll", f"for (int i = 0; i < {4 * quads - 4}; ++i)",
                f"  sums[i / {4 * each}][i % {4 * each}] = sums[(i + 4) / {4 * each}][(i + 4) % {4 * each}];",
                "#pragma unroll",
                f"for (int i = 0; i < 4; ++i) sums[{self.sets - 1}][{4 * each - 4} + i] = next[i];"]), "}",
            f"scales = met + {self.ones}, row_scale = 1.0f;", self._meet]), "}"]

    def _cell(self) -> list[str]:
        """Define ``to``, where the results of n go, and ``count``, its positions."""
        all_columns = self.kernel.groups * self.kernel.out_channels
        return [
            "// The cell of the first slab that meets n.",
            f"const int ahead = n > first_n ? n * {self.geometry.pitches[0]}{'LL' * (self.kind != 'int')} - begin : 0;",
            f"const int number = ahead / {SLAB_ROWS} * 2 + (ahead % {SLAB_ROWS} > 0);",
            f"const int count = {' + '.join(f'counts[{w}]' for w in range(WARPS))};",
            "if (thread == number) positions = count;",
            f"float* const to = slab_totals + (first_cell + number) * {self.geometry.components * all_columns}LL "
            f"+ group * {self.kernel.out_channels}LL + first_column;",
            f"const int end = min({self.columns}, {self.kernel.out_channels} - first_column);"]
