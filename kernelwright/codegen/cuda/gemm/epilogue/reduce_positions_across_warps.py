"""What the warps of a warpgroup find for totals in the registers of their sums, as text: a part of
`epilogue.reduce_positions_in_registers`.

A thread takes its rows of a column together, then 8 lanes what they have of their columns: a lane keeps one half of
these, gives away the other, and takes that half of what its partner gives, in each of three steps. What the 4 warps
found stands in shared memory: of component k, warp w and column c at ``met[(4 * k + w) * columns + c]``.
"""

from __future__ import annotations

import re

from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions import distinct_totals, without_totals
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import Walk
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    as_float,
    device_function,
    emitter_of,
    loads_of,
    straight,
)
from kernelwright.codegen.cuda.gemm.problem import COMPONENTS, Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.expressions import Expression

THREADS, WARPS = 128, 4
#: Rows of four warps that are taken together for a number near a mean: 8 of each.
RUN_ROWS = 32
#: Whether row h of a set is a position. Of an array of bool the compiler would make numbers first.
THERE = "mine[set / 2] & 1u << set % 2 * 16 + h * 8"


def places(geometry: Geometry) -> tuple[int, int, int]:
    """Shared memory of a warpgroup, in floats: behind a result of each component, column and warp where integers begin
    (the positions of each warp, the first column, and four bits for each of a warp's runs of 8 rows: its positions),
    then ones in place of columns' scales; and all of it."""
    columns = geometry.tiling.columns
    counts = geometry.components * WARPS * columns
    ones = counts + 3 * WARPS
    return counts, ones, ones + columns * geometry.scaled


class WarpTotals(Walk):
    """Walks over sums in registers, and what becomes of their results. ``products``: sets of 64 rows of a warpgroup's
    tile; ``sets``: the same of all output phases; ``counts`` and ``ones``: where shared memory holds integers of the
    warps, and ones in place of columns' scales. Raises ValueError where totals cannot be taken.

    A walk reads ``sums``, as `epilogue.reduce_positions_in_registers` says, ``mine``, ``row_scale`` and ``scales``, n,
    and the positions ``at0``, ``at1``, ... along the axes that are ``moved``.
    """

    def __init__(self, geometry: Geometry, name: str) -> None:
        if reason := without_totals(geometry):
            raise ValueError(f"{name}: {reason}")
        super().__init__(geometry, name)
        tiling = geometry.tiling
        self.columns, self.products = tiling.columns, Layout(geometry, 0).products
        self.sets = self.products * tiling.phases
        if self.has_moments and 2 * self.sets * 4 > 32:
            raise ValueError(f"{name}: no moments of {self.sets} sets of 64 rows: a word has four bits for each half")
        # Values of columns of a thread that the lanes take together: a power of two.
        self.together = self.columns // 4 if self.columns in (8, 16) else 8
        self.distinct = distinct_totals(self.kernel)
        self.counts, self.ones, self.floats = places(geometry)
        self.column_table = ColumnTable(geometry, name, self.distinct)
        everything = tuple(a for a in range(len(self.names)) if a != 1)
        self.emitter = emitter_of(self.kernel, self.kernel.domain, self.names, list(self.distinct), walked=everything)
        self.emitter.reduced[0, 0] = "sum"
        for number in range(len(self.table.values)):
            self.emitter.reduced[IN_TABLE, number] = f"column{number}"

    @property
    def moved(self) -> list[int]:
        """The spatial axes along which something is loaded."""
        loads = loads_of([self.table.without(value) for value in self.distinct])
        indices = [i for load in loads for i in (load.index, *(guard.index for guard in load.guards))]
        return [a for a in range(len(self.kernel.axes)) if any(index.strides[3 + a] for index in indices)]

    def _found(self, value: Expression) -> list[tuple[int, str]]:
        """Of the totals of a value, the first component and the kind."""
        result, at = [], 0
        for total in self.kernel.totals:
            if total.expression == value:
                result.append((at, total.kind))
            at += COMPONENTS[total.kind]
        return result

    @property
    def has_moments(self) -> bool:
        """Whether there are moments among the totals."""
        return any(total.kind == "moments" for total in self.kernel.totals)

    def first_walk(self) -> list[str]:
        """Of all totals what the warps find. Where there are moments it is a number near their means alone: the mean of
        one run of 8 rows of each warp, the first that has positions, of which each place brings an equal part."""
        if not self.has_moments:
            return [line for value in self.distinct
                    for line in self._walk(value, {at: (kind, "value") for at, kind in self._found(value)}, [])]
        lines = []
        for run in range(2 * self.sets):
            lines += [f"{'else ' * (run > 0)}if (run == {run}) {{"]
            for value in self.distinct:
                takes = {at: ("sum", f"value * {1.0 / RUN_ROWS!r}f") for at, kind in self._found(value)
                         if kind == "moments"}
                lines += indent(self._walk(value, takes, [], run)) if takes else []
            lines += ["}"]
        return lines

    def second_walk(self) -> list[str]:
        """Where there are moments: what values differ from that number, and the squares, and all other totals."""
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
            lines += self._walk(value, takes, means)
        return lines

    def _walk(self, value: Expression, takes: dict[int, tuple[str, str]], means: list[int], run: int | None = None
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
        used = [(f"columns + {k * columns}" if column != "column_scale" else "scales", column)
                for k, column in enumerate(self.table.names)
                if column == "column_scale" or re.search(rf"\b{column}\b", words)]
        used += [(f"met + {at * WARPS * columns}", f"mean{at}") for at in means]
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
                   *(f"some{at}[2 * i + e] = {THERE} ? {TAKES[kind].format(f'some{at}[2 * i + e]', term)} "
                     f": some{at}[2 * i + e];" for at, (kind, term) in takes.items())]
        inner = [*reads, "#pragma unroll", "for (int e = 0; e < 2; ++e) {", *indent([
            *each, *self._rows(element, run)]), "}"]
        lanes = 32 // together
        own = " && ".join([*[f"lane % {lanes} < 4"] * (lanes > 4), *[f"own < {columns}"] * padded])
        index = f"lane / {lanes}"
        return ["#pragma unroll", f"for (int first = 0; first < {columns // 8}; first += {pairs}) {{", *indent([
            *(f"float some{at}[{together}];" for at in takes), "#pragma unroll",
            f"for (int i = 0; i < {together}; ++i) "
            + ", ".join(f"some{at}[i] = {STARTS[kind]}" for at, (kind, _) in takes.items()) + ";",
            "#pragma unroll", f"for (int i = 0; i < {pairs}; ++i) {{", *indent([
                "const int j = first + i, column = 8 * j + lane % 4 * 2;",
                *[f"if (j >= {columns // 8}) continue;"] * padded, *inner]), "}",
            f"const int own = 8 * (first + {index} / 2) + lane % 4 * 2 + {index} % 2;",
            *(f"const float all{at} = {name}_{kind}_of_lanes(some{at}, lane);" for at, (kind, _) in takes.items()),
            f"{f'if ({own}) ' * bool(own)}"
            + ", ".join(f"met[{at * WARPS * columns} + warp * {columns} + own] = all{at}" for at in takes) + ";"]), "}"]

    def _rows(self, element: list[str], run: int | None) -> list[str]:
        """The statements for a thread's rows: all, or that of a run."""
        if run is not None:
            return [f"constexpr int set = {run // 2}, h = {run % 2};", *element]
        return ["#pragma unroll", f"for (int set = 0; set < {self.sets}; ++set)", "#pragma unroll",
                "  for (int h = 0; h < 2; ++h) {", *indent(element, 4), "  }"]

    def write(self, rest: bool) -> list[str]:
        """Take the results of the warps together, and write them: those of the first walk, or the ``rest``."""
        lines, at = [], 0
        for total in self.kernel.totals:
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
            at += COMPONENTS[total.kind]
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
        return f"to[{f'{at}LL * {all_columns} + ' * (at > 0)}c] = {value or f'all{at}'};"

    def helpers(self) -> list[str]:
        """``NAME_sum_of_lanes`` and the like: of the kinds that there are."""
        kinds = {"sum" if total.kind == "moments" else total.kind for total in self.kernel.totals}
        return [self._of_lanes(kind) for kind in sorted(kinds)]

    def _of_lanes(self, kind: str) -> str:
        together, exchange = self.together, "__shfl_xor_sync(0xffffffffu, {0}, apart)".format
        lines = [
            "#pragma unroll", "for (int apart = 16, left = "
            f"{together}; apart >= 4; apart /= 2, left = left > 1 ? left / 2 : 1) {{", *indent([
                "const bool upper = lane & apart;",
                *([f"if (left == 1) value[0] = {TAKES[kind].format('value[0]', exchange('value[0]'))};"]
                  if together < 8 else []),
                "#pragma unroll", f"for (int i = 0; i < {together // 2}; ++i) {{", *indent([
                    "if (i >= left / 2) continue;",
                    "const float keep = upper ? value[left / 2 + i] : value[i];",
                    "const float give = upper ? value[i] : value[left / 2 + i];",
                    f"value[i] = {TAKES[kind].format('keep', exchange('give'))};"]), "}"]), "}", "return value[0];"]
        what = {"sum": "The sum", "max": "The maximum", "min": "The minimum"}[kind]
        comment = f"{what} over the 8 lanes that share columns, of one of {together} values of each:\n" \
            f"of number lane / {32 // together}. A lane keeps one half of them, and gives away the other."
        return device_function(comment, "float", f"{self.name}_{kind}_of_lanes",
                               [f"float (&value)[{together}]", "int lane"], lines)
