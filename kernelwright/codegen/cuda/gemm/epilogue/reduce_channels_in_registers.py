"""The epilogue of a contraction on wgmma that reduces its output channels in the registers that its sums are in.

By way of a slab (`epilogue.reduce_channels`) each walk over a position's channels read an element from shared
memory and wrote it back, and a lane had all channels of its position: what it needs of a column came for one element
alone. In registers a lane has two columns of every eight, of two rows (of two phases: of four), and keeps what a walk
leaves in them. It folds its own columns, then the four lanes of a row exchange what they found: two shuffles.

A slab follows for the stores alone, which are of 32 neighbouring positions, or 16. A warp's rows stay with it, so that
no barrier is needed but the warp's own. A position's channels stand beside each other there, ``pitch`` floats from one
position to the next: 4 modulo 8, so that a lane reads four at a time, and eight of them meet in no bank, and so do two
columns of 4 rows, which half a warp writes at a time. For that rows 0 and 8 of a warp stand beside each other, as two
phases of a row do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelwright.codegen.cuda.gemm.epilogue.channels_fit_registers import folded_table, folds, slab_floats
from kernelwright.codegen.cuda.gemm.epilogue.column_table import READ
from kernelwright.codegen.cuda.gemm.epilogue.kept_values import SUM, kept, reads
from kernelwright.codegen.cuda.gemm.epilogue.output_parity import PairOfChannels
from kernelwright.codegen.cuda.gemm.epilogue.quotients import decaying, shares
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels import ReducingWalk
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import UNROLL, operand_pointers
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    TWICE,
    as_float,
    coordinates,
    device_function,
    parameter_texts,
    reduced_lines,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SLAB_ROWS, Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.expressions import Expression, Reduced, walk
from kernelwright.plan.kernels import Store

#: Of the barriers of a part of a block: behind those of the cores.
_BARRIER = 8
_ALL = "0xffffffffu"


class FoldingWalk(ReducingWalk):
    """Threads fold what they have of 64 rows, then two lanes take a position and store its channels."""

    comment = "threads reduce the channels that they have, then two lanes take a position and store them"
    row_of = "thread / 32 * 16 + thread % 2 * 8 + thread % 16 / 2"
    place = "thread / 32 * 16 + thread % 16"
    heads: list[str]

    def __init__(self, geometry: Geometry, name: str) -> None:
        if not folds(geometry):
            raise ValueError(f"{name}: no channels to reduce in registers: {geometry.tiling}")
        super().__init__(geometry, name)
        self.column_table = folded_table(geometry, name)
        known = [*zip((reduction.kind for reduction in self.kernel.reductions), self.reduced, strict=True)]
        changed = decaying([shares(store.expression, known) for store in self.along], known)
        self.along = [replace(s, expression=e) for s, e in zip(self.along, changed[:len(self.along)], strict=True)]
        self.reduced = changed[len(self.along):]
        self.phases, self.pitch = geometry.tiling.phases, self.columns + 4
        self.products = Layout(geometry, 0).products
        self.strides, self.floats = (self.pitch, 1), slab_floats(geometry)
        self.heads = [f"float (&tile)[{self.products * self.phases}][{self.columns // 2}]", "float* slab"]
        self.rows = 2 * self.phases
        self.part = -(-self.kernel.out_channels // 2 // READ) * READ or READ
        self.folding = self._new_emitter()
        self.results: dict[tuple[int, int], str] = {}
        self.fold_lines = self._fold()
        used = {p for s in (*self.along, *self._once()) for p in walk(s.expression) if isinstance(p, Reduced)}
        for part in sorted((p for p in used if p.reduction > 0), key=lambda p: (p.reduction, p.component)):
            self.results[part.reduction, part.component] = f"results[{len(self.results)}]"
        self.emitter.reduced.update(self.results)

    def row_scale(self) -> str:
        """None: it is read as it is needed."""
        return ""

    def helpers(self) -> list[str]:
        """``NAME_fold`` besides."""
        pointers = operand_pointers(self.kernel) if self.geometry.scaled else []
        heads = [" ".join(pair) for pair in parameter_texts(self.kernel, set(pointers))]
        if self.geometry.scaled:
            heads += ["const float* __restrict__ right_scales", "float row_scale", "bool usual", "int first",
                      "int last", f"{self.kind} row", "int phase_class", "int g"]
        sums = [f"float (&{name})[{self.columns // 2}]" for name in ("sums", "others")[:self.phases]]
        results = [f"float (&results)[{len(self.results)}]"] if self.results else []
        text = device_function("Reduces the channels of 64 rows, and puts what is left of them into the slab.", "void",
                               f"{self.name}_fold", [*heads, *sums, "float* slab",
                                                     *["const float* columns"] * bool(self.table.floats), *results,
                                                     "int thread"], self._folded_rows())
        return [*super().helpers(), text]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        self.emitter.divides |= self.folding.divides
        lines = ["const int g = group;",
                 *[f"kw_part_sync({_BARRIER} + threadIdx.x / 128, 128);  // The table is there."]
                 * bool(self.table.floats)]
        each = [*self._place(), *self.channels(), *self._call(), *self.position()]
        once = self._once()
        if self.along:
            each += [*self.table.begins("first"),
                     f"const float* const row_sums = slab + ({self.place}) * {self.pitch};",
                     *self._stored(self.along, "there", self._walk)]
        if once:
            each += self._stored(once, "there && first == 0", list)
        if self.products == 1:
            return [*lines, *each]
        return [*lines, "#pragma unroll", f"for (int number = 0; number < {self.products}; ++number) {{",
                *indent(each), "}"]

    def channels(self) -> list[str]:
        """Define ``first`` and ``last``."""
        return [f"const int first = thread / 16 % 2 * {self.part};",
                f"const int last = min(first + {self.part}, {self.kernel.out_channels});"]

    def _once(self) -> list[Store]:
        return [s for s in self.kernel.stores if not s.index.strides[2]]

    def _place(self) -> list[str]:
        """Define ``row``, the thread's, and ``there``: whether it is a position."""
        rows, beyond = self.geometry.rows, self.beyond()
        number = f" + number * {SLAB_ROWS}" * (self.products > 1)
        lines = [f"{self.kind} row = first_row{number} + {self.row_of};"]
        if beyond:
            lines += ["bool there;", "{", *indent([*coordinates(self.geometry, self.kind)[1:],
                                                   f"there = row < {rows} && !({beyond});"]), "}"]
        else:
            lines.append(f"const bool there = row < {rows};")
        return [*lines, "if (!there) row = 0;  // some position, of which nothing is written"]

    def _call(self) -> list[str]:
        """The call of ``NAME_fold`` for the sums of the position's product."""
        lines, given = [], []
        if self.geometry.scaled:
            lines = ["float row_scale;", "{", *indent([coordinates(self.geometry, self.kind)[0],
                                                       f"row_scale = {row_scale_text(self.geometry)};"]), "}",
                     *self.table.usual("row_scale")]
            given = [*operand_pointers(self.kernel), "right_scales", "row_scale",
                     f"__all_sync({_ALL}, usual)", "first", "last", "row", "phase_class", "g"]
        if self.results:
            lines.append(f"float results[{len(self.results)}];")
        after = ["slab", *["columns"] * bool(self.table.floats), *["results"] * bool(self.results), "thread"]
        for p in range(self.products):
            sums = [f"tile[{f * self.products + p}]" for f in range(self.phases)]
            call = f"{self.name}_fold({', '.join([*given, *sums, *after])});"
            lines.append(f"if (number == {p}) {call}" if self.products > 1 else call)
        return lines

    def _walk(self, step: list[str], fours: bool = False) -> list[str]:
        """``step`` for every channel of this lane, from the slab."""
        return self.table.steps("first", "last", ["const float sum = own[v];", *step], UNROLL, True,
                                [f"float own[{READ}];", "kw_read4(own, row_sums + c);"])

    # What NAME_fold says.

    def _folded_rows(self) -> list[str]:
        """The statements of ``NAME_fold``."""
        slots = 16 * self.phases
        lines = ["const int lane = thread % 32, column = lane % 4 * 2;",
                 f"float* const to = slab + (thread / 32 * {slots} + lane / 4 * 2) * {self.pitch} + column;"]
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
        """Finish sums whose scales are not usual with care, by way of the slab; others are multiplied as they are first
        read. What they are multiplied by is a product of scales, or one: 0 times a scale, plus one."""
        points = ", ".join([*operand_pointers(self.kernel), "own[o]", "row_scale", column_scale_text(self.geometry),
                            *self.names])
        return ["if (!usual) {", *indent([
            *self._put_lines(), *self.position(), f"float* const own = slab + ({self.place}) * {self.pitch};",
            "#pragma unroll 1", f"for (int o = first; o < last; ++o) own[o] = {self.name}_careful({points});",
            "__syncwarp();", *self._moved("", "{1} = two.x, {2} = two.y;", "const float2 two = *{0};")]), "}",
            "const float scale = usual ? row_scale : 0.0f, rest = usual ? 0.0f : 1.0f;",
            "const float row_scales[2] = {" + ", ".join(
                f"__shfl_sync({_ALL}, scale, lane / 4 * 2{f' + {self._slot(h, 0)}' * (h > 0)})" for h in (0, 1)) + "};"]

    def _slot(self, half: int, phase: int) -> int:
        """Where the row 8 * half behind a lane's first one stands in the slab, of a phase, from its first one on."""
        return half if self.phases == 1 else 16 * half + phase

    def _put_lines(self) -> list[str]:
        """Put the registers into the slab."""
        return ["__syncwarp();  // The slab before has been read.",
                *self._moved("", "*{0} = make_float2({1}, {2});", ""), "__syncwarp();"]

    def _moved(self, margin: str, text: str, before: str) -> list[str]:
        """``text`` for all places of the thread in the slab: {0} is a pointer, {1} and {2} the registers."""
        lines = []
        for phase, name in enumerate(("sums", "others")[:self.phases]):
            for half in (0, 1):
                at = f"reinterpret_cast<float2*>(to + {self._slot(half, phase) * self.pitch} + 8 * j)"
                given = (at, f"{name}[4 * j + {2 * half}]", f"{name}[4 * j + {2 * half + 1}]")
                step = [t.format(*given) for t in (before, text) if t]
                lines += ["{", *indent(step), "}"] if len(step) > 1 else step
        return ["#pragma unroll", f"for (int j = 0; j < {self.columns // 8}; ++j) {{", *indent(lines), "}"]

    def _fold(self) -> list[list[str]]:
        """The walks of each reduction, which has an array of a result for each row."""
        channels = self.kernel.out_channels
        return [reduced_lines(self.folding, number, reduction, channels, self._folded(number), self.rows)
                for number, reduction in enumerate(self.kernel.reductions, 1)]

    def _folded(self, number: int) -> Callable[[str, str, str], list[str]]:
        def fold(kind: str, result: str, term: str) -> list[str]:
            # What does not change from column to column is written down where it is used: the compiler moves it.
            emitter = self._new_emitter()
            emitter.reduced.update(self.folding.reduced)
            value = as_float(emitter, self.reduced[number - 1])
            before = self._as_new()
            left = self._left(number)
            text = as_float(emitter, left) if left else ""
            part = f"{result}_part[i]"
            self.folding.divides |= emitter.divides
            step = [*emitter.fixed_lines, *straight(emitter), *([f"element = {text};"] if left else []),
                    f"{part} = {TAKES[kind].format(part, term.format(value))};"]
            several = 2 * self.rows
            lines = [*before, f"float {result}_part[{several}] = {{{', '.join([STARTS[kind]] * several)}}};",
                     *self._each(step), f"float {result}[{self.rows}];", "#pragma unroll",
                     f"for (int row = 0; row < {self.rows}; ++row) {{"]
            self.raw = False
            self._put(left)
            other = f"__shfl_xor_sync({_ALL}, {result}[row], {{}})"
            return [*lines, *indent([
                f"{result}[row] = {TAKES[kind].format(f'{result}_part[2 * row]', f'{result}_part[2 * row + 1]')};",
                *(f"{result}[row] = {TAKES[kind].format(f'{result}[row]', other.format(apart))};" for apart in (1, 2)),
            ]), "}"]

        return fold

    def _as_new(self) -> list[str]:
        """Make sums that have been walked over look like others to the compiler: it would keep what it computed of them
        and of columns for the next walk, in registers that there are not."""
        again = any(count < (2 if reduction.kind in TWICE else 1)
                    for count, reduction in zip(self.walks, self.kernel.reductions, strict=True))
        return [f"kw_wgmma_hold({name});" for name in ("sums", "others")[:self.phases]] * again

    def _each(self, step: list[str]) -> list[str]:
        """``step`` for every sum of a thread: number ``i`` of column 8 * j + column + v, of its row number ``row``."""
        used = [(k, name) for k, name in enumerate(self.table.names)
                if any(f"{name}[v]" in line for line in step) or (self.raw and name == "column_scale")]
        lines = []
        for k, name in used:
            at = f"values{f' + {k * self.columns}' * (k > 0)} + 8 * j"
            lines += [f"const float2 two{k} = *reinterpret_cast<const float2*>({at});",
                      f"const float {name}[2] = {{two{k}.x, two{k}.y}};"]
        channels = self.kernel.out_channels
        element = "sums[4 * j + i]" if self.phases == 1 else "i < 4 ? sums[4 * j + i % 4] : others[4 * j + i % 4]"
        scale = " * fmaf(row_scales[row % 2], column_scale[v], rest)" * self.raw
        inner = ["const int v = i % 2, row = i / 2;",
                 *[f"if (8 * j + 8 > {channels} && 8 * j + column + v >= {channels}) continue;"]
                 * (channels < self.columns),
                 f"float& element = {element};", f"const float sum = element{scale};", *step]
        return ["#pragma unroll", f"for (int j = 0; j < {self.columns // 8}; ++j) {{", *indent([
            *lines, "#pragma unroll", f"for (int i = 0; i < {2 * self.rows}; ++i) {{", *indent(inner), "}"]), "}"]

    def _left(self, number: int) -> Expression | None:
        """As by way of slabs, but that it costs nothing to leave something in a register."""
        self.walks[number - 1] -= 1
        later = [*self.reduced[number - (self.walks[number - 1] > 0):], *(store.expression for store in self.along)]
        left = kept(self.reduced[number - 1], later, 1)
        return SUM if left is None and self.raw and any(map(reads, later)) else left

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


class FoldingPairWalk(PairOfChannels, FoldingWalk):
    """A thread takes one of 128 positions of two phases."""

    comment = "threads reduce the channels that they have, then one takes a position and stores them"
