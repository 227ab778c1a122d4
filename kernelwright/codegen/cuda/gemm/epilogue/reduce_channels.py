"""Reductions over output channels from an epilogue subtile: softmax, sums, extrema, moments.

A subtile holds all channels of its rows. Two lanes of a warp, 16 apart, share a row and take a part of its channels
each; they pass over its sums once per reduction (twice for moments and log-sum-exp) and once for the stores, and
exchange what they found. The first pass multiplies sums by their scales, unless these leave the fast path: then a loop
before it finishes them in place, with care. A pass leaves in the subtile what later ones would compute again
(`epilogue.kept_values`), and reduces into four numbers, so that no step waits for the one before. Writes of a warp are
runs of 16 neighbouring positions. Where channels are neighbours in the output, the lanes transpose before they store:
eight take a row, and a warp writes runs of 8 channels of 4 rows, from 32 banks.

Of tiles with both output phases of the last axis a subtile has 128 positions, and a thread takes all channels of one,
without an exchange. Element (row, phase, column) is at 2 * row + phase + column * 132. Positions 2u and 2u + 1 stand
beside each other there as in the output, so that a warp's 32 lanes have 32 neighbours of a column: in 32 banks as they
read and write the subtile, and in one run of memory (of float32 128 bytes) as they store, where a line has 32 positions
left. Half a warp of the core puts both phases of 4 rows x 4 pairs of columns into the subtile at a time, at banks 2 *
row + 8 * pair (264 is 8 modulo 32) and the one behind: all 32.

A subtile of C columns takes 528 * C bytes, 34 KB of 64 and 68 KB of 128, twice those of one phase: it is the same for
each sum. Two consumer warpgroups with 128 columns have room for stages of 16 channels beside theirs. Sums take C
registers for 64 rows, in fp16x3 twice as many: there up to 64 channels fit, in fp16 and native 128.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION, two_lanes_a_row
from kernelwright.codegen.cuda.gemm.epilogue.collective import all_reduce
from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, READ, ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.kept_values import SUM, kept, put, reads
from kernelwright.codegen.cuda.gemm.epilogue.quotients import QuotientEmitter, quotient_functions
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    UNROLL,
    EpilogueOperation,
    reduced_channels_fastest,
    write_stores,
)
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    TWO_PASS,
    as_float,
    reduced_lines,
    straight,
)
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.expressions import Expression, Reduced, walk
from kernelwright.plan.kernels import Store


class ReduceChannels(EpilogueOperation):
    """Two lanes take a row, or one a position of two phases. ``place``: a thread's place in a subtile's columns, which
    are ``pitch`` floats apart. Raises ValueError for two phases where channels are neighbours in the output."""

    emitter_kind = QuotientEmitter
    emitter: QuotientEmitter  # pyrefly: ignore[bad-override-mutable-attribute]  # of `emitter_kind`

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        self.transposes = reduced_channels_fastest(self.kernel)
        self.place = "thread" if self.phases == 2 else two_lanes_a_row(1).of_thread(POSITION)
        self.row_of = self.row_of or self.place
        if self.phases == 2:
            if self.transposes:
                raise ValueError(f"{name}: no tiles of two phases of positions where channels are neighbours")
            self.row_of, self.phase_of = "thread / 2", "thread % 2"
        self.comment = "a thread takes one of 128 positions, and reduces its channels before it stores" \
            if self.phases == 2 else "two lanes take a row, and reduce its channels before they store"
        self.pitch = self.phases * SUBTILE_ROWS + 4
        self.strides = (self.phases, self.pitch)
        self.floats = self.columns * self.pitch
        self.sum = self.element = f"row_sums[o * {self.pitch}]"
        self.parts, self.part_number = READ, "v"
        roots = [*self.kernel.reductions, *self.kernel.stores]
        self.column_table = ColumnTable(geometry, name, tuple(root.expression for root in roots),
                                        entries=not self.transposes)
        self.reduced = [self.table.without(reduction.expression) for reduction in self.kernel.reductions]
        self.once = [s for s in self.kernel.stores if not s.index.strides[2]]
        self.along = self.table.stores([s for s in self.kernel.stores if s.index.strides[2]])
        # Passes of reductions that are still to come, and whether the subtile has sums without their scales.
        self.passes = [2 if reduction.kind in TWO_PASS else 1 for reduction in self.kernel.reductions]
        self.unscaled = geometry.scaled
        self.emitter = self._new_emitter()
        # The lanes of a row read banks 16 apart where they begin 4 (modulo 8) channels apart.
        half = -(-self.kernel.out_channels // 2)
        self.channels_of_lane = min(half + (4 - half) % 8, self.kernel.out_channels)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        lines = ["const int g = group;", *self.row_or_other(), *self.position(), *self.channels(),
                 f"float* const row_sums = sums + {self.place};", *self.table.begins("first")]
        if self.geometry.scaled:
            lines += self._scaled()
        for number, reduction in enumerate(self.kernel.reductions, 1):
            lines += reduced_lines(self.emitter, number, reduction, self.kernel.out_channels, self._folded(number))
        if self.along and not self.transposes:
            lines += self._stored(self.along, "in_bounds", self._each_channel)
        if self.once:
            lines += self._stored(self.once, "in_bounds && first == 0", list)
        return lines + (self._transposed() if self.transposes else [])

    def helpers(self) -> list[str]:
        """What quotients need."""
        return quotient_functions(self.name) if self.emitter.divides else []

    def _stored(self, stores: list[Store], condition: str, looped: Callable[[list[str]], list[str]]) -> list[str]:
        """Stores, where ``condition`` holds, of what ``looped`` makes of one step."""
        self.emitter.start_walk("")
        write_stores(self.emitter, self.kernel, stores)
        step = straight(self.emitter)
        return [*self._fixed(), f"if ({condition}) {{", *indent(looped(step)), "}"]

    def out_of_bounds(self) -> str:
        """As of every operation; of an odd number of positions the second phase has one less."""
        ends = f"u{len(self.kernel.axes) - 1} * 2 + thread % 2 >= {self.odd_size}" if self.odd_size else ""
        return " || ".join(filter(None, [super().out_of_bounds(), ends]))

    def channels(self) -> list[str]:
        """Define ``first`` and ``last``: which channels of its row a thread takes."""
        if self.phases == 2:
            return [f"constexpr int first = 0, last = {self.kernel.out_channels};"]
        return [f"const int first = {two_lanes_a_row(1).of_thread(CHANNEL)} * {self.channels_of_lane};",
                f"const int last = min(first + {self.channels_of_lane}, {self.kernel.out_channels});"]

    def exchanged(self, kind: str, result: str) -> list[str]:
        """The statements by which the lanes of a row exchange what each of them found."""
        return [] if self.phases == 2 else [all_reduce(kind, result, 16)]

    def _new_emitter(self) -> QuotientEmitter:
        """An emitter of passes over the channels, which has met nothing."""
        emitter = self.emitter_with(self.table)
        assert isinstance(emitter, QuotientEmitter)  # of `emitter_kind`
        emitter.name = self.name
        emitter.reduced[0, 0] = "sum"
        return emitter

    def _transposed(self) -> list[str]:
        """Stores by eight lanes a row, which ask the row's own lane for what its reductions gave."""
        emitter = self._new_emitter()
        asked = []
        for part in dict.fromkeys(p for s in self.along for p in walk(s.expression) if isinstance(p, Reduced)):
            if part.reduction > 0:
                own = self.emitter.reduced[part.reduction, part.component]
                emitter.reduced[part.reduction, part.component] = f"{own}_there"
                asked.append(f"const float {own}_there = __shfl_sync(0xffffffffu, {own}, r);")
        at = self.geometry.scaled * self.columns
        for number in range(len(self.table.values)):
            emitter.reduced[IN_TABLE, number] = f"columns[{at + number * self.columns} + o]"
        write_stores(emitter, self.kernel, self.along)
        step = straight(emitter)
        self.emitter.used |= emitter.used
        self.emitter.vectors |= emitter.vectors
        self.emitter.divides |= emitter.divides
        return ["__syncwarp();  // the sums of all rows are finished", "#pragma unroll 1",
                "for (int r = thread % 32 / 8; r < 16; r += 4) {", *indent([
                    *asked, f"const {self.kind} row = first_row + thread / 32 * 16 + r;",
                    f"if (row >= {self.geometry.rows}) continue;", *self.position("continue"),
                    "const float* const row_sums = sums + thread / 32 * 16 + r;", *emitter.fixed_lines,
                    f"#pragma unroll {UNROLL}", f"for (int o = thread % 8; o < {self.kernel.out_channels}; o += 8) {{",
                    f"  const float sum = {self.sum};", *indent(step), "}"]), "}"]

    def _each_channel(self, step: list[str], fours: bool = False) -> list[str]:
        """``step`` for every channel of this lane."""
        scale = " * (fast ? row_scale * column_scale[v] : 1.0f)" * self.unscaled
        return self.table.steps("first", "last", [f"const float sum = {self.sum}{scale};", *step], UNROLL, fours)

    def _fixed(self) -> list[str]:
        """What is computed before a pass."""
        lines, self.emitter.fixed_lines = self.emitter.fixed_lines, []
        return lines

    def _scaled(self) -> list[str]:
        """Finish the row's sums in place whose scales leave the fast path; others are multiplied as they are first
        read."""
        return [*self.scale_lines(), "if (!fast) {", "#pragma unroll 1", "  for (int o = first; o < last; ++o)",
                f"    {self.sum} = {self.rescaled(self.sum)};", "}"]

    def _folded(self, number: int) -> Callable[[str, str, str], list[str]]:
        """How `reduced_lines` folds the expression of reduction ``number`` over a row: a thread's elements into a few
        partial results, these into one, and those of the lanes of a row."""
        def fold(kind: str, result: str, term: str) -> list[str]:
            emitter, before = self._begin_pass()
            value = as_float(emitter, self.reduced[number - 1])
            left = self._left(number)
            text = as_float(emitter, left) if left else ""
            part = f"{result}_part[{self.part_number}]"
            step = [*straight(emitter), *([f"{self.element} = {text};"] if left else []),
                    f"{part} = {TAKES[kind].format(part, term.format(value))};"]
            starts = ", ".join([STARTS[kind]] * self.parts)
            lines = [*before, *self._pass(emitter, f"float {result}_part[{self.parts}] = {{{starts}}};", step)]
            self.unscaled = False
            self._put(left)
            return [*lines, *self._joined(kind, result)]

        return fold

    def _begin_pass(self) -> tuple[QuotientEmitter, list[str]]:
        """The emitter of a pass, and what is said before it."""
        self.emitter.start_walk("")
        return self.emitter, []

    def _pass(self, emitter: QuotientEmitter, parts: str, step: list[str]) -> list[str]:
        """``step`` for every element of a thread, behind the definition of its partial results."""
        return [*self._fixed(), parts, *self._each_channel(step, fours=True)]

    def _joined(self, kind: str, result: str) -> list[str]:
        """Define a result from its parts, in all lanes of a row."""
        halves = [TAKES[kind].format(f"{result}_part[{v}]", f"{result}_part[{v + 1}]") for v in (0, 2)]
        return [f"float {result} = {TAKES[kind].format(*halves)};", *self.exchanged(kind, result)]

    def _left(self, number: int) -> Expression | None:
        """What a pass of reduction ``number`` leaves in the subtile, or at no cost in registers, for those behind it;
        None if what is there may stay, or nobody reads it."""
        self.passes[number - 1] -= 1
        later = [*self.reduced[number - (self.passes[number - 1] > 0):], *(store.expression for store in self.along)]
        left = kept(self.reduced[number - 1], later, *[1] * (self.unscaled or self.in_registers))
        return SUM if left is None and self.unscaled and any(map(reads, later)) else left

    def _put(self, left: Expression | None) -> None:
        """Have what comes read what is ``left``."""
        if left is None or left == SUM:
            return
        self.reduced = [put(expression, left) for expression in self.reduced]
        self.along = [replace(store, expression=put(store.expression, left)) for store in self.along]
