"""Reductions over output channels in wgmma's registers.

By way of a subtile (`epilogue.reduce_channels`) each pass over a position's channels read an element from shared
memory and wrote it back, and a lane had all channels of its position: what it needs of a column came for one element
alone. In registers a lane has two columns of every eight, of two rows (of two phases: of four), and keeps what a pass
leaves in them. It folds its own columns, then the four lanes of a row exchange what they found: two shuffles.

A subtile follows for the stores alone, which are of 32 neighbouring positions, or 16. A warp's rows stay with it, so
that no barrier is needed but the warp's own. A position's channels stand beside each other there, ``pitch`` floats from
one position to the next: 4 modulo 8, so that a lane reads four at a time, and eight of them meet in no bank, and so do
two columns of 4 rows, which half a warp writes at a time. For that rows 0 and 8 of a warp stand beside each other, as
two phases of a row do.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL
from kernelwright.codegen.cuda.gemm.epilogue.collective import all_reduce
from kernelwright.codegen.cuda.gemm.epilogue.column_table import READ, ColumnTable, table_room
from kernelwright.codegen.cuda.gemm.epilogue.quotients import QuotientEmitter, decaying, shares
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels import ReduceChannels
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    MEET,
    UNROLL,
    operand_pointers,
    reduced_channels_fastest,
)
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import REGISTERS, Layout
from kernelwright.codegen.cuda.gemm.points import (
    TAKES,
    TWO_PASS,
    coordinates,
    device_function,
    loads_of,
    parameter_texts,
    reduced_lines,
)
from kernelwright.codegen.cuda.gemm.precision.scales import row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import plus
from kernelwright.plan.expressions import Reduced, walk

_ALL = "0xffffffffu"
#: Registers that passes over sums in registers need beside these: ptxas spills with less.
_NEEDED_REGISTERS = 72
#: Of more passes ptxas spills, too, where each of them is over more sums.
_MOST_PASSES, _MANY_SUMS = 2, 64


def folds(geometry: Geometry) -> bool:
    """Whether channels can be reduced in registers: on wgmma, where nothing that is reduced depends on a position but
    by its sum, positions are neighbours in what is stored, and there are registers for it."""
    kernel, tiling = geometry.kernel, geometry.tiling
    if not kernel.reductions or not kernel.axes or kernel.pools or kernel.position_reductions \
            or tiling.core != "wgmma" \
            or tiling.split_k > 1 or tiling.overlap or tiling.sector_aligned or reduced_channels_fastest(kernel):
        return False
    passes = sum(2 if reduction.kind in TWO_PASS else 1 for reduction in kernel.reductions)
    if (passes > _MOST_PASSES and tiling.parities * tiling.columns // 2 > _MANY_SUMS) \
            or _spare_registers(geometry) < _NEEDED_REGISTERS:
        return False
    table = folded_table(geometry, "")
    return not loads_of([table.without(reduction.expression) for reduction in kernel.reductions])


def subtile_floats(geometry: Geometry) -> int:
    """Floats of such a subtile, of 64 rows of all phases."""
    return SUBTILE_ROWS * geometry.tiling.parities * (geometry.tiling.columns + 4)


def _spare_registers(geometry: Geometry) -> int:
    """Registers of a thread that has the sums of its tile."""
    try:
        layout = Layout(geometry, subtile_floats(geometry) + table_room(geometry))
    except ValueError:
        return 0
    registers = layout.moved_registers or REGISTERS // (layout.blocks * layout.threads) // 8 * 8
    return registers - layout.products * geometry.tiling.parities * geometry.tiling.columns // 2


def folded_table(geometry: Geometry, name: str) -> ColumnTable:
    """The table of columns of such an epilogue."""
    roots = [*geometry.kernel.reductions, *geometry.kernel.stores]
    return ColumnTable(geometry, name, tuple(root.expression for root in roots), finite=True)


class ReduceChannelsInRegisters(ReduceChannels):
    """Threads fold what they have of 64 rows, then two lanes take a position and store its channels, of two phases
    one."""

    row_of = "thread / 32 * 16 + thread % 2 * 8 + thread % 16 / 2"
    in_registers = True

    def __init__(self, geometry: Geometry, name: str) -> None:
        if not folds(geometry):
            raise ValueError(f"{name}: no channels to reduce in registers: {geometry.tiling}")
        super().__init__(geometry, name)
        self.comment = "threads reduce the channels that they have, then " + (
            "one takes a position and stores them" if self.phases == 2 else "two lanes take a position and store them")
        self.column_table = folded_table(geometry, name)
        known = [*zip((reduction.kind for reduction in self.kernel.reductions), self.reduced, strict=True)]
        changed = decaying([shares(store.expression, known) for store in self.along], known)
        self.along = [replace(s, expression=e) for s, e in zip(self.along, changed[:len(self.along)], strict=True)]
        self.reduced = changed[len(self.along):]
        self.pitch = self.columns + 4
        self.hold_tile()
        self.strides, self.floats = (self.pitch, 1), subtile_floats(geometry)
        self.rows = 2 * self.phases
        self.parts, self.part_number, self.element = 2 * self.rows, "i", "element"
        self.channels_of_lane = -(-self.kernel.out_channels // 2 // READ) * READ or READ
        self.folding = self._new_emitter()
        self.results: dict[tuple[int, int], str] = {}
        self.fold_lines = self._fold()
        used = {p for s in (*self.along, *self.once) for p in walk(s.expression) if isinstance(p, Reduced)}
        for part in sorted((p for p in used if p.reduction > 0), key=lambda p: (p.reduction, p.component)):
            self.results[part.reduction, part.component] = f"results[{len(self.results)}]"
        self.emitter.reduced.update(self.results)

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes of the sums: all of a tile, and room for a subtile."""
        return [f"float (&tile)[{self.sets}][{self.columns // 2}]", "float* subtile"]

    def row_scale(self) -> str:
        """None: it is read as it is needed."""
        return ""

    def helpers(self) -> list[str]:
        """``NAME_fold`` besides."""
        pointers = operand_pointers(self.kernel) if self.geometry.scaled else []
        heads = [" ".join(pair) for pair in parameter_texts(self.kernel, set(pointers))]
        if self.geometry.scaled:
            heads += ["const float* __restrict__ right_scales", "float row_scale", "bool fast", "int first",
                      "int last", f"{self.kind} row", "int phase_class", "int g"]
        sums = [f"float (&{name})[{self.columns // 2}]" for name in ("sums", "others")[:self.phases]]
        results = [f"float (&results)[{len(self.results)}]"] if self.results else []
        text = device_function("Reduces the channels of 64 rows, and puts what is left of them into the subtile.",
                               "void",
                               f"{self.name}_fold", [*heads, *sums, "float* subtile",
                                                     *["const float* columns"] * bool(self.table.floats), *results,
                                                     "int thread"], self._folded_rows())
        return [*super().helpers(), text]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        self.emitter.divides |= self.folding.divides
        lines = ["const int g = group;",
                 *[f"{MEET}  // The table is there."]
                 * bool(self.table.floats)]
        number = f" + number * {SUBTILE_ROWS}" * (self.products > 1)
        each = [*self.row_or_other(number), *self.channels(), *self._call(), *self.position()]
        if self.along:
            each += [*self.table.begins("first"),
                     f"const float* const row_sums = subtile + ({self.place}) * {self.pitch};",
                     *self._stored(self.along, "in_bounds", self._each_channel)]
        if self.once:
            each += self._stored(self.once, "in_bounds && first == 0", list)
        if self.products == 1:
            return [*lines, *each]
        return [*lines, "#pragma unroll", f"for (int number = 0; number < {self.products}; ++number) {{",
                *indent(each), "}"]

    def _call(self) -> list[str]:
        """The call of ``NAME_fold`` for the sums of the position's product."""
        lines, given = [], []
        if self.geometry.scaled:
            lines = ["float row_scale;", "{", *indent([
                *coordinates(self.geometry, self.kind)[:1 + self.kernel.entry_axes],
                f"row_scale = {row_scale_text(self.geometry, 'u')};"]), "}",
                     *self.table.fast_path("row_scale")]
            given = [*operand_pointers(self.kernel), "right_scales", "row_scale",
                     f"__all_sync({_ALL}, fast)", "first", "last", "row", "phase_class", "g"]
        if self.results:
            lines.append(f"float results[{len(self.results)}];")
        after = ["subtile", *["columns"] * bool(self.table.floats), *["results"] * bool(self.results), "thread"]
        for p in range(self.products):
            sums = [f"tile[{f * self.products + p}]" for f in range(self.phases)]
            call = f"{self.name}_fold({', '.join([*given, *sums, *after])});"
            lines.append(f"if (number == {p}) {call}" if self.products > 1 else call)
        return lines

    def _each_channel(self, step: list[str], fours: bool = False) -> list[str]:
        """``step`` for every channel of this lane, from the subtile."""
        return self.table.steps("first", "last", ["const float sum = own[v];", *step], UNROLL, True,
                                [f"float own[{READ}];", "kw_read4(own, row_sums + c);"])

    # What NAME_fold says.

    def _folded_rows(self) -> list[str]:
        """The statements of ``NAME_fold``."""
        slots = 16 * self.phases
        lines = [f"const int lane = thread % 32, column = {self.layout.text(CHANNEL, quad='lane % 4')};",
                 f"float* const to = subtile + (thread / 32 * {slots} + lane / 4 * 2) * {self.pitch} + column;"]
        if self.table.floats:
            lines.append("const float* const values = columns + column;")
        if self.geometry.scaled:
            lines += self._scaled()
        if self.results:
            own, source = ("lane % 2", "lane % 16 / 2 * 4 + lane % 2") if self.phases == 1 else \
                ("lane % 4", "lane / 2 % 8 * 4 + lane % 2 * 2 + lane / 16")
            lines.append(f"const int own = {own}, source = {source};")
        for number, reduction in enumerate(self.fold_lines, 1):
            lines += [*reduction, *self._given(number)]
        return [*lines, *(self._put_lines() if self.along else [])]

    def _scaled(self) -> list[str]:
        """Rescale sums whose scales leave the fast path, by way of the subtile; others are multiplied as they are first
        read. What they are multiplied by is a product of scales, or one: 0 times a scale, plus one."""
        return ["if (!fast) {", *indent([
            *self._put_lines(), *self.position(), f"float* const own = subtile + ({self.place}) * {self.pitch};",
            "#pragma unroll 1", f"for (int o = first; o < last; ++o) own[o] = {self.rescaled('own[o]')};",
            "__syncwarp();", *self._moved("", "{1} = two.x, {2} = two.y;", "const float2 two = *{0};")]), "}",
                "const float scale = fast ? row_scale : 0.0f, rest = fast ? 0.0f : 1.0f;",
            "const float row_scales[2] = {" + ", ".join(
                f"__shfl_sync({_ALL}, scale, lane / 4 * 2{f' + {self._slot(h, 0)}' * (h > 0)})" for h in (0, 1)) + "};"]

    def _slot(self, half: int, phase: int) -> int:
        """Where the row 8 * half behind a lane's first one stands in the subtile, of a phase, from its first one on."""
        return half if self.phases == 1 else 16 * half + phase

    def _put_lines(self) -> list[str]:
        """Put the registers into the subtile."""
        return ["__syncwarp();  // The subtile before has been read.",
                *self._moved("", "*{0} = make_float2({1}, {2});", ""), "__syncwarp();"]

    def _moved(self, margin: str, text: str, before: str) -> list[str]:
        """``text`` for all places of the thread in the subtile: {0} is a pointer, {1} and {2} the registers."""
        lines = []
        for phase, name in enumerate(("sums", "others")[:self.phases]):
            for half in (0, 1):
                at = f"reinterpret_cast<float2*>({plus('to', self._slot(half, phase) * self.pitch, '8 * j')})"
                given = (at, f"{name}[{plus('4 * j', 2 * half)}]", f"{name}[{plus('4 * j', 2 * half + 1)}]")
                step = [t.format(*given) for t in (before, text) if t]
                lines += ["{", *indent(step), "}"] if len(step) > 1 else step
        return ["#pragma unroll", f"for (int j = 0; j < {self.columns // 8}; ++j) {{", *indent(lines), "}"]

    def _fold(self) -> list[list[str]]:
        """The passes of each reduction, which has an array of a result for each row."""
        channels = self.kernel.out_channels
        return [reduced_lines(self.folding, number, reduction, channels, self._folded(number), self.rows)
                for number, reduction in enumerate(self.kernel.reductions, 1)]

    def _begin_pass(self) -> tuple[QuotientEmitter, list[str]]:
        # What does not change from column to column is written down where it is used: the compiler moves it.
        emitter = self._new_emitter()
        emitter.reduced.update(self.folding.reduced)
        return emitter, self._as_new()

    def _pass(self, emitter: QuotientEmitter, parts: str, step: list[str]) -> list[str]:
        self.folding.divides |= emitter.divides
        return [parts, *self._each([*emitter.fixed_lines, *step])]

    def _joined(self, kind: str, result: str) -> list[str]:
        two = TAKES[kind].format(f"{result}_part[2 * row]", f"{result}_part[2 * row + 1]")
        return [f"float {result}[{self.rows}];", "#pragma unroll", f"for (int row = 0; row < {self.rows}; ++row) {{",
                f"  {result}[row] = {two};",
                *(f"  {all_reduce(kind, f'{result}[row]', 1 << bit)}" for bit in self.layout.lane_bits(CHANNEL)), "}"]

    def _as_new(self) -> list[str]:
        """Make sums that have been gone over look like others to the compiler: it would keep what it computed of them
        and of columns for the next pass, in registers that there are not."""
        recomputes = any(count < (2 if reduction.kind in TWO_PASS else 1)
                         for count, reduction in zip(self.passes, self.kernel.reductions, strict=True))
        return [f"kw_wgmma_hold({name});" for name in ("sums", "others")[:self.phases]] * recomputes

    def _each(self, step: list[str]) -> list[str]:
        """``step`` for every sum of a thread: number ``i`` of column 8 * j + column + v, of its row number ``row``."""
        used = [(k, name) for k, name in enumerate(self.table.names)
                if any(f"{name}[v]" in line for line in step) or (self.unscaled and name == "column_scale")]
        lines = []
        for k, name in used:
            at = f"values{f' + {k * self.columns}' * (k > 0)} + 8 * j"
            lines += [f"const float2 two{k} = *reinterpret_cast<const float2*>({at});",
                      f"const float {name}[2] = {{two{k}.x, two{k}.y}};"]
        channels = self.kernel.out_channels
        element = "sums[4 * j + i]" if self.phases == 1 else "i < 4 ? sums[4 * j + i % 4] : others[4 * j + i % 4]"
        scale = " * fmaf(row_scales[row % 2], column_scale[v], rest)" * self.unscaled
        inner = ["const int v = i % 2, row = i / 2;",
                 *[f"if (8 * j + 8 > {channels} && 8 * j + column + v >= {channels}) continue;"]
                 * (channels < self.columns),
                 f"float& element = {element};", f"const float sum = element{scale};", *step]
        return ["#pragma unroll", f"for (int j = 0; j < {self.columns // 8}; ++j) {{", *indent([
            *lines, "#pragma unroll", f"for (int i = 0; i < {2 * self.rows}; ++i) {{", *indent(inner), "}"]), "}"]

    def _given(self, number: int) -> list[str]:
        """Give the lane of a position its results: each of the four that have them shows those of one row."""
        lines = []
        for key, name in self.results.items():
            if key[0] != number:
                continue
            found = self.folding.reduced[key].removesuffix("[row]")
            texts = [f"{found}[{row}]" for row in range(self.rows)]
            choice = f"own ? {texts[1]} : {texts[0]}" if self.phases == 1 else \
                f"own & 2 ? (own & 1 ? {texts[3]} : {texts[2]}) : (own & 1 ? {texts[1]} : {texts[0]})"
            lines.append(f"{name} = __shfl_sync({_ALL}, {choice}, source);")
        return lines
