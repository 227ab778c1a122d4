"""Reductions over positions in wgmma's registers, of a contraction that stores nothing else.

Where results of positions are stored as well, sums go through shared memory, so that neighbouring threads write
neighbouring positions (`epilogue.reduce_positions`). Reductions over positions need no such order.

A thread evaluates the expressions of its own sums, of two rows of each product of 64, and takes all of these of a
column together. The 8 lanes of a warp that share columns halve what they hold in each of three steps: a lane keeps one
half of the columns, gives away the other, and takes that half of what its partner gives; 8 columns cost 7 shuffles
instead of 24. The 4 warps meet in shared memory. (benchmarks/notes/contractions.md, "Epilogues", counts instructions.)

All rows of a warpgroup's tile that belong to one n make one partial result. It goes to the partial-sum slot of the
first subtile that meets this n; the tile's other partial-sum slots have no positions, and `epilogue.finalize` skips
these. Where n changes within the tile's rows all of this is done for each n, with masks that say which rows are its
positions: a scale of x is the same for all of them.

Moments are of what values differ from a number near them, as in `epilogue.reduce_positions`: the mean of the first
run of 8 rows of each warp that has positions. So a part of the sums is evaluated twice, and the number comes back to
all threads before the pass over all. (The mean of all rows took a pass over all for itself.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION, THREADS
from kernelwright.codegen.cuda.gemm.epilogue.collective import every_sum, reduce_scatter
from kernelwright.codegen.cuda.gemm.epilogue.column_table import ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions import distinct_expressions, refused_positions
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import MEET, EpilogueOperation
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    as_float,
    device_function,
    emitter_of,
    entry_type,
    loads_of,
    ordinary_stores,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry, components
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import modulo, over, plus
from kernelwright.plan.expressions import Expression

WARPS = 4
#: Rows of four warps that are taken together for a number near a mean: 8 of each.
RUN_ROWS = 32
#: Whether row h of a set is a position. Of an array of bool the compiler would make numbers first.
IN_BOUNDS = "mine[set / 2] & 1u << set % 2 * 16 + h * 8"


def shared_floats(geometry: Geometry) -> tuple[int, int, int]:
    """Shared memory of a warpgroup, in floats: behind a result of each component, column and warp where integers begin
    (the positions of each warp, the first column, and four bits for each of a warp's runs of 8 rows: its positions),
    then ones in place of columns' scales; and all of it."""
    columns = geometry.tiling.columns
    counts = geometry.components * WARPS * columns
    ones = counts + 3 * WARPS
    return counts, ones, ones + columns * geometry.scaled

# What stands in a core in place of the way through shared memory; ``@NAME@`` as in `mainloop.sm90.text`.
RESULTS_IN_REGISTERS = """
      // From registers to partial sums.
#pragma unroll
      for (int p = 0; p < @ALL_SUMS@; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;
      @NAME@_finish(@ARGUMENTS@sums, subtile@COLUMN_TABLE@, thread, phase_class, group,
                    row_block * (1LL * ROWS) + part_row, column_block * COLUMNS);"""


def in_registers(geometry: Geometry) -> bool:
    """Whether reductions over positions are taken from registers: on wgmma, where nothing is stored for each
    position."""
    kernel, tiling = geometry.kernel, geometry.tiling
    return bool(kernel.position_reductions) and not ordinary_stores(kernel) and tiling.core == "wgmma" \
        and tiling.split_k == 1


class ReducePositionsInRegisters(EpilogueOperation):
    """The threads of a warpgroup take their own sums, of all rows of the tile that it multiplies.

    ``counts`` and ``ones``: where shared memory holds integers of the warps, and ones in place of columns' scales. A
    loop over sums reads ``mine``, ``row_scale`` and ``scales``, n, and the positions ``at0``, ``at1``, ... along the
    axes that are ``moved``. Raises ValueError where reductions over positions cannot be taken.
    """

    comment = "for reductions over positions alone, from registers"
    parameters = (("float* __restrict__", "position_partials"), ("int* __restrict__", "position_counts"))
    support = frozenset({"tensor_core"})
    in_registers = True

    def __init__(self, geometry: Geometry, name: str) -> None:
        if reason := refused_positions(geometry):
            raise ValueError(f"{name}: {reason}")
        super().__init__(geometry, name)
        self.hold_tile()
        if self.has_moments and 2 * self.sets * 4 > 32:
            raise ValueError(f"{name}: no moments of {self.sets} sets of 64 rows: a word has four bits for each half")
        # Values of columns of a thread that the lanes take together: a power of two.
        self.together = self.columns // 4 if self.columns in (8, 16) else 8
        self.distinct = distinct_expressions(self.kernel)
        self.counts, self.ones, self.floats = shared_floats(geometry)
        self.column_table = ColumnTable(geometry, name, self.distinct)
        everything = tuple(a for a in range(len(self.names)) if a != 1)
        self.emitter = emitter_of(self.kernel, self.kernel.domain, self.names, list(self.distinct), walked=everything)
        self.emitter.reduced[0, 0] = "sum"
        self.name_columns(self.emitter, "column{}")

    @property
    def moved(self) -> list[int]:
        """The spatial axes along which something is loaded."""
        loads = loads_of([self.table.without(value) for value in self.distinct])
        indices = [i for load in loads for i in (load.index, *(guard.index for guard in load.guards))]
        return [a for a in range(len(self.kernel.axes)) if any(index.strides[3 + a] for index in indices)]

    def _found(self, value: Expression) -> list[tuple[int, str]]:
        """Of the reductions over positions of a value, the first component and the kind."""
        return [(at, total.kind) for at, total in components(self.kernel) if total.expression == value]

    @property
    def has_moments(self) -> bool:
        """Whether there are moments among the reductions over positions."""
        return any(total.kind == "moments" for total in self.kernel.position_reductions)

    def first_pass(self) -> list[str]:
        """Of all reductions over positions what the warps find. Where there are moments it is a number near their means
        alone: the mean of one run of 8 rows of each warp, the first that has positions, of which each place brings an
        equal part."""
        if not self.has_moments:
            return [line for value in self.distinct
                    for line in self._reduced(value, {at: (kind, "value") for at, kind in self._found(value)}, [])]
        lines = []
        for run in range(2 * self.sets):
            lines += [f"{'else ' * (run > 0)}if (run == {run}) {{"]
            for value in self.distinct:
                takes = {at: ("sum", f"value * {1.0 / RUN_ROWS!r}f") for at, kind in self._found(value)
                         if kind == "moments"}
                lines += indent(self._reduced(value, takes, [], run)) if takes else []
            lines += ["}"]
        return lines

    def second_pass(self) -> list[str]:
        """Where there are moments: what values differ from that number, and the squares, and all other reductions over
        positions."""
        lines = []
        for value in self.distinct if self.has_moments else ():
            takes, means = {}, []
            for at, kind in self._found(value):
                if kind == "moments":
                    means.append(at)
                    off = f"(value - mean{at})"
                    takes |= {at + 1: ("sum", off), at + 2: ("sum", f"{off} * {off}")}
                else:
                    takes[at] = kind, "value"
            lines += self._reduced(value, takes, means)
        return lines

    def _reduced(self, value: Expression, takes: dict[int, tuple[str, str]], means: list[int], run: int | None = None
              ) -> list[str]:
        """Reduce a value over the warp's positions: components by number, of a kind and a term. ``run``: over one of
        its runs of 8 rows alone."""
        columns, together, name = self.columns, self.together, self.name
        pairs = together // 2
        padded = columns % (8 * pairs) > 0
        self.emitter.start_walk("")
        text = as_float(self.emitter, self.table.without(value))
        step = straight(self.emitter)
        words = " ".join((*step, text))
        used = [(plus("columns", k * columns) if column != "column_scale" else "scales", column)
                for k, column in enumerate(self.table.names)
                if column == "column_scale" or re.search(rf"\b{column}\b", words)]
        used += [(plus("met", at * WARPS * columns), f"mean{at}") for at in means]
        scaled = self.geometry.scaled
        reads = [f"const float2 two_{column} = *reinterpret_cast<const float2*>({place} + column);"
                 for place, column in used]
        each = [f"const float {column} = e ? two_{column}.y : two_{column}.x;" for _, column in used]
        each += ["const float scale = row_scale * column_scale;"] * scaled
        whole = self.kernel.out_channels % columns == 0
        o = "first_column + column + e"
        if re.search(r"\bo\b", words):
            each.append(f"const int o = {o if whole else f'min({o}, {self.kernel.out_channels - 1})'};")
        element = [*(f"const int p{a} = at{a}[set][h];" for a in self.moved if re.search(rf"\bp{a}\b", words)),
                   f"const float sum = sums[set][4 * j + 2 * h + e]{' * scale' * scaled};", *step,
                   f"const float value = {text};",
                   *(f"some{at}[2 * i + e] = {IN_BOUNDS} ? {TAKES[kind].format(f'some{at}[2 * i + e]', term)} "
                     f": some{at}[2 * i + e];" for at, (kind, term) in takes.items())]
        inner = [*reads, "#pragma unroll", "for (int e = 0; e < 2; ++e) {", *indent([
            *each, *self._rows(element, run)]), "}"]
        lanes = 32 // together
        own = " && ".join([*[f"lane % {lanes} < 4"] * (lanes > 4), *[f"own < {columns}"] * padded])
        index = f"lane / {lanes}"
        places = [plus(at * WARPS * columns, f"warp * {columns}", "own") for at in takes]
        return ["#pragma unroll", f"for (int first = 0; first < {columns // 8}; first += {pairs}) {{", *indent([
            *(f"float some{at}[{together}];" for at in takes), "#pragma unroll",
            f"for (int i = 0; i < {together}; ++i) "
            + ", ".join(f"some{at}[i] = {STARTS[kind]}" for at, (kind, _) in takes.items()) + ";",
            "#pragma unroll", f"for (int i = 0; i < {pairs}; ++i) {{", *indent([
                f"const int j = first + i, column = {self.layout.text(CHANNEL, block='j', quad='lane % 4')};",
                *[f"if (j >= {columns // 8}) continue;"] * padded, *inner]), "}",
            f"const int own = 8 * (first + {index} / 2) + lane % 4 * 2 + {index} % 2;",
            *(f"const float all{at} = {name}_{kind}_of_lanes(some{at}, lane);" for at, (kind, _) in takes.items()),
            f"{f'if ({own}) ' * bool(own)}"
            + ", ".join(f"met[{place}] = all{at}" for at, place in zip(takes, places, strict=True)) + ";"]), "}"]

    def _rows(self, element: list[str], run: int | None) -> list[str]:
        """The statements for a thread's rows: all, or that of a run."""
        if run is not None:
            return [f"constexpr int set = {run // 2}, h = {run % 2};", *element]
        return ["#pragma unroll", f"for (int set = 0; set < {self.sets}; ++set)", "#pragma unroll",
                "  for (int h = 0; h < 2; ++h) {", *indent(element, 4), "  }"]

    def write(self, rest: bool) -> list[str]:
        """Take the results of the warps together, and write them: those of the first pass, or the ``rest``."""
        lines = []
        for at, total in components(self.kernel):
            if total.kind != "moments" and rest == self.has_moments:
                lines += [*self._of_warps(total.kind, at), self._to(at)]
            elif total.kind == "moments" and not rest:
                lines += [*self._of_warps("sum", at),
                          f"const float some{at} = all{at} * __fdividef({RUN_ROWS}.0f, of_run);",
                          f"const float mean{at} = fabsf(some{at}) < INFINITY ? some{at} : 0.0f;",
                          f"met[{at * WARPS * self.columns} + c] = mean{at};", self._to(at, f"mean{at}")]
            elif total.kind == "moments":
                lines += [*self._of_warps("sum", at + 1), *self._of_warps("sum", at + 2), self._to(at + 1),
                          self._to(at + 2)]
        return [f"for (int c = thread; c < end; c += {THREADS}) {{", *indent(lines), "}"]

    def _of_warps(self, kind: str, at: int) -> list[str]:
        """Define a component of a column."""
        first = at * WARPS * self.columns
        parts = [f"met[{first + w * self.columns} + c]" if first + w else "met[c]" for w in range(WARPS)]
        halves = [TAKES[kind].format(*parts[i:i + 2]) for i in (0, 2)]
        both = TAKES[kind].format(*(f"({half})" for half in halves))
        return [f"const float all{at} = {both};"]

    def _to(self, at: int, value: str = "") -> str:
        """The statement that writes a component of a column."""
        all_columns = self.kernel.groups * self.kernel.out_channels
        return f"to[{plus(at * all_columns, 'c')}] = {value or f'all{at}'};"

    def helpers(self) -> list[str]:
        """``NAME_sum_of_lanes`` and the like: of the kinds that there are."""
        kinds = {"sum" if total.kind == "moments" else total.kind for total in self.kernel.position_reductions}
        return [self._of_lanes(kind) for kind in sorted(kinds)]

    def _of_lanes(self, kind: str) -> str:
        def take(own: Sequence[str], given: Sequence[str]) -> list[str]:
            return [f"{own[0]} = {TAKES[kind].format(own[0], given[0])};"]

        together, bits = self.together, self.layout.lane_bits(POSITION)
        lines = [*reduce_scatter(["value"], together, bits[::-1], take), "return value[0];"]
        what = {"sum": "The sum", "max": "The maximum", "min": "The minimum"}[kind]
        comment = f"{what} over the 8 lanes that share columns, of one of {together} values of each:\n" \
            f"of number lane / {32 // together}. A lane keeps one half of them, and gives away the other."
        return device_function(comment, "float", f"{self.name}_{kind}_of_lanes",
                               [f"float (&value)[{together}]", "int lane"], lines)

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes between pointers and numbers."""
        return [f"float (&sums)[{self.sets}][{self.columns // 2}]", "float* __restrict__ met"]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        geometry, kind, products = self.geometry, self.kind, self.products
        pitch, unsigned = geometry.pitches[0], "unsigned" if kind == "int" else "(unsigned long long)"
        wide, many = ("long long", "LL") if geometry.partial_slots >= 2**31 else ("int", "")
        entry = entry_type(self.kernel)
        first, second = self.first_pass(), self.second_pass()  # before the emitter's lines are read
        return [
            "const int g = group, lane = thread % 32, warp = thread / 32;", *self.emitter.fixed_lines,
            f"const {kind} begin = first_row, last = min(begin + {SUBTILE_ROWS * products - 1}, "
            f"{geometry.rows - 1}{'LL' * (kind != 'int')});",
            f"const {entry} first_n = {unsigned}(begin) / {pitch}u, last_n = {unsigned}(last) / {pitch}u;",
            f"const {wide} first_slot = (phase_class * {geometry.subtiles}{many} + begin / {SUBTILE_ROWS}) * 2;",
            "int positions = 0;  // of partial-sum slot number `thread` of these rows: none, but where an n begins",
            "#pragma unroll 1",
            f"for ({entry} of_n = first_n; of_n <= last_n; ++of_n) {{  // one, but where n changes within the rows",
            *indent([*self._places(), f"const {entry} n = of_n;", *self._own_positions(), *self._scale(),
                     f"int* const counts = reinterpret_cast<int*>(met + {self.counts});", *self._runs(),
                     f"{MEET}  // What was in `met` has been read, and the table is there.", *self._run(),
                     *self._rescaled_in_place(), f"if (lane == 0) counts[warp] = {self._positions('places')};",
                     *[f"if (thread == 0) counts[{WARPS}] = first_column;"] * bool(second),
                     *first, f"{MEET}  // The warps' results are there.", *self._partial_slot(), *self.write(False),
                     *self._second_pass(second)]), "}",
            f"if (thread < {2 * products} && group == 0 && first_column == 0) "
            "position_counts[first_slot + thread] = positions;"]

    def _second_pass(self, second: list[str]) -> list[str]:
        """The second pass, where there is one. What it computes again looks new to the compiler, which would keep all
        of it in registers otherwise."""
        if not second:
            return []
        return [f"{MEET}  // The means are there.", "// As if these were others: no value is kept for so long.",
                "#pragma unroll", f"for (int set = 0; set < {self.sets}; ++set) kw_wgmma_hold(sums[set]);",
                f"const int first_column = counts[{WARPS}];", *second, f"{MEET}  // So is the rest.",
                *self.write(True)]

    def _positions(self, words: str) -> str:
        """The text of how many bits some words have."""
        return " + ".join(f"__popc({words}[{w}])" for w in range(-(-self.sets // 2)))

    def _place(self, **within: str) -> list[str]:
        """Define n and p0, p1, ... of a row of ``set``: ``within`` are its digits behind that of the warp."""
        number = f"set % {self.products}" if self.sets > self.products else "set"
        row = self.layout.text(POSITION, **{"set": number} if self.products > 1 else {}, warp="warp", **within)
        return [f"const {self.kind} row = first_row + {row};", *self.position(phase=over("set", self.products))]

    def _places(self) -> list[str]:
        """Define ``places``, a bit for each row of the warp, and ``mine``, the same from the thread's first row on."""
        words, in_bounds = -(-self.sets // 2), f"set < {self.sets} && " * (self.sets % 2) + self.in_bounds()
        return [
            "// Which of the warp's rows are positions of it: a lane looks at one of 16 in each second set.",
            f"unsigned places[{words}];", "#pragma unroll", f"for (int w = 0; w < {words}; ++w) {{", *indent([
                "const int set = 2 * w + lane / 16;", *self._place(row="lane % 16"),
                f"places[w] = __ballot_sync(0xffffffffu, n == of_n && {in_bounds});"]), "}",
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
        return [
            f"int {', '.join(f'at{a}[{self.sets}][2]' for a in self.moved)};", "#pragma unroll",
            f"for (int i = 0; i < {2 * self.sets}; ++i) {{", "  const int set = i / 2, h = i % 2;", *indent([
                *self._place(half="h", row="lane / 4"),
                *(f"at{a}[set][h] = {IN_BOUNDS} ? p{a} : 0;" for a in self.moved)]), "}"]

    def _scale(self) -> list[str]:
        """Define ``row_scale``, that of n."""
        return [f"float row_scale = {row_scale_text(self.geometry)};"] * self.geometry.scaled

    def _rescaled_in_place(self) -> list[str]:
        """Where scales leave the fast path: rescale the sums in place, and put ones in place of the scales."""
        if not self.geometry.scaled:
            return []
        each, kernel = self.columns // 8, self.kernel
        column = self.layout.text(CHANNEL, block=modulo("quad", each), quad="lane % 4", pair="e % 2")
        return [*self.table.fast_path("row_scale"), "const float* scales = columns;",
                "if (!fast) {  // Rescaled, in place: all sums move round.", *indent([
            f"for (int c = thread; c < {self.columns}; c += {THREADS}) met[{self.ones} + c] = 1.0f;",
            *every_sum(self.sets, 4 * each, "quad", [f"const int set = {over('quad', each)};"], [
                *self._place(half="e / 2", row="lane / 4"), f"const int o = first_column + {column};",
                "float value = next[0];",
                f"if (n == of_n && o < {kernel.out_channels} && {self.in_bounds()})",
                f"  value = {self.rescaled('next[0]')};"], keep=True),
            f"scales = met + {self.ones}, row_scale = 1.0f;", MEET]), "}"]

    def _partial_slot(self) -> list[str]:
        """Define ``to``, where the results of n go, and ``count``, its positions."""
        all_columns = self.kernel.groups * self.kernel.out_channels
        return [
            "// The partial-sum slot of the first subtile that meets n.",
            f"const int ahead = n > first_n ? n * {self.geometry.pitches[0]}{'LL' * (self.kind != 'int')} - begin : 0;",
            f"const int number = ahead / {SUBTILE_ROWS} * 2 + (ahead % {SUBTILE_ROWS} > 0);",
            f"const int count = {' + '.join(f'counts[{w}]' for w in range(WARPS))};",
            "if (thread == number) positions = count;",
            f"float* const to = position_partials + (first_slot + number) * {self.geometry.components * all_columns}LL "
            f"+ group * {self.kernel.out_channels}LL + first_column;",
            f"const int end = min({self.columns}, {self.kernel.out_channels} - first_column);"]
