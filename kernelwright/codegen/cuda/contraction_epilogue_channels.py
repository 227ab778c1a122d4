"""The epilogue of a contraction that reduces its output channels: softmax, sums, extrema, moments over them.

A slab holds all channels of its rows. Two lanes of a warp, 16 apart, share a row and take a part of its channels each;
they first finish the sums in place, then walk over them once per reduction and once for the stores, and exchange what
they found. Writes of a warp are runs of 16 neighbouring positions. Where channels are neighbours in the output, the
lanes turn before they store: eight take a row, and a warp writes runs of 8 channels of 4 rows, from 32 banks.

Of tiles with both output phases of the last axis (`contraction_epilogue_pairs`) a slab has 128 positions, and a thread
takes all channels of one, without an exchange: half as many walks of twice the length. Element (row, phase, column) is
at 2 * row + phase + column * 132. A warp's 32 lanes have 32 neighbours of a column, in 32 banks, whether they read,
finish sums in place, or store: positions 2u and 2u + 1 stand beside each other in shared memory as in the output, so
that each store of a warp is one run of memory (of float32 128 bytes) where a line has 32 positions left.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.codegen.contraction_geometry import Geometry
from kernelwright.codegen.cuda.contraction_epilogue_columns import IN_TABLE, ColumnTable
from kernelwright.codegen.cuda.contraction_epilogue_pairs import PITCH, PairPositions
from kernelwright.codegen.cuda.contraction_epilogue_walks import (
    SLAB_ROWS,
    UNROLL,
    Walk,
    column_scale_text,
    operand_pointers,
    turns,
    write_stores,
)
from kernelwright.codegen.cuda.contraction_points import (
    STARTS,
    TAKES,
    PointEmitter,
    as_float,
    coordinates,
    reduced_lines,
    straight,
)
from kernelwright.codegen.cuda.loops_site import indent
from kernelwright.plan.expressions import Reduced, walk
from kernelwright.plan.kernels import Reduction, Store

_EXCHANGED = "__shfl_xor_sync(0xffffffffu, {0}, 16)"


class ReducingWalk(Walk):
    """Two lanes take a row. ``place``: a thread's place in a slab's columns, which are ``pitch`` floats apart."""

    comment = "two lanes take a row, and reduce its channels before they store"
    row_of = place = "thread / 32 * 16 + thread % 16"
    row_stride, pitch = 1, SLAB_ROWS + 4

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        self.strides = (self.row_stride, self.pitch)
        self.floats = self.columns * self.pitch
        self.sum = f"row_sums[o * {self.pitch}]"
        roots = [*self.kernel.reductions, *self.kernel.stores]
        self.table = ColumnTable(geometry, name, tuple(root.expression for root in roots))
        self.emitter = self._new_emitter()
        # The lanes of a row read banks 16 apart where they begin 4 (modulo 8) channels apart.
        half = self.kernel.out_channels // 2
        self.part = min(half + (4 - half) % 8, self.kernel.out_channels)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        rows, beyond = self.geometry.rows, self.beyond()
        lines = ["const int g = group;", f"{self.kind} row = first_row + {self.row_of};"]
        if beyond:
            lines += ["bool there;", "{", *indent([*coordinates(self.geometry, self.kind)[1:],
                                                   f"there = row < {rows} && !({beyond});"]), "}"]
        else:
            lines.append(f"const bool there = row < {rows};")
        lines += ["if (!there) row = 0;  // some position, of which nothing is written", *self.position(),
                  *self.channels(), f"float* const row_sums = sums + {self.place};", *self.table.begins("first")]
        if self.geometry.scaled:
            lines += self._scaled()
        for number, reduction in enumerate(self.kernel.reductions, 1):
            lines += reduced_lines(self.emitter, number, reduction, self.kernel.out_channels, self._folded(reduction))
        along = [s for s in self.kernel.stores if s.index.strides[2]]
        once = [s for s in self.kernel.stores if not s.index.strides[2]]
        turned = turns(self.kernel)
        for stores in filter(None, (() if turned else along, once)):
            self.emitter.start_walk("")
            write_stores(self.emitter, self.kernel, self.table.stores(stores) if stores is along else stores)
            step = straight(self.emitter)
            lines += self._fixed()
            lines += ["if (there) {", *indent(self._walk(step)), "}"] if stores is along else \
                ["if (there && first == 0) {", *indent(step), "}"]
        return lines + (self._turned(along) if turned else [])

    def channels(self) -> list[str]:
        """Define ``first`` and ``last``: which channels of its row a thread takes."""
        return [f"const int first = thread / 16 % 2 * {self.part};",
                f"const int last = min(first + {self.part}, {self.kernel.out_channels});"]

    def exchanged(self, kind: str, result: str) -> list[str]:
        """The statements by which the lanes of a row exchange what each of them found."""
        return [f"{result} = {TAKES[kind].format(result, _EXCHANGED.format(result))};"]

    def _new_emitter(self) -> PointEmitter:
        """An emitter of walks over the channels, which has met nothing."""
        emitter = self.emitter_with(self.table)
        emitter.reduced[0, 0] = "sum"
        return emitter

    def _turned(self, stores: list[Store]) -> list[str]:
        """Stores by eight lanes a row, which ask the row's own lane for what its reductions gave."""
        emitter = self._new_emitter()
        asked = []
        for part in dict.fromkeys(p for s in stores for p in walk(s.expression) if isinstance(p, Reduced)):
            if part.reduction:
                own = self.emitter.reduced[part.reduction, part.component]
                emitter.reduced[part.reduction, part.component] = f"{own}_there"
                asked.append(f"const float {own}_there = __shfl_sync(0xffffffffu, {own}, r);")
        at = self.geometry.scaled * self.columns
        for number in range(len(self.table.values)):
            emitter.reduced[IN_TABLE, number] = f"columns[{at + number * self.columns} + o]"
        write_stores(emitter, self.kernel, self.table.stores(stores))
        step = straight(emitter)
        self.emitter.used |= emitter.used
        self.emitter.vectors |= emitter.vectors
        return ["__syncwarp();  // the sums of all rows are finished", "#pragma unroll 1",
                "for (int r = thread % 32 / 8; r < 16; r += 4) {", *indent([
                    *asked, f"const {self.kind} row = first_row + thread / 32 * 16 + r;",
                    f"if (row >= {self.geometry.rows}) continue;", *self.position("continue"),
                    "const float* const row_sums = sums + thread / 32 * 16 + r;", *emitter.fixed_lines,
                    f"#pragma unroll {UNROLL}", f"for (int o = thread % 8; o < {self.kernel.out_channels}; o += 8) {{",
                    f"  const float sum = {self.sum};", *indent(step), "}"]), "}"]

    def _walk(self, step: list[str]) -> list[str]:
        """``step`` for every channel of this lane."""
        return self.table.steps("first", "last", [f"const float sum = {self.sum};", *step], UNROLL)

    def _fixed(self) -> list[str]:
        """What is computed before a walk."""
        lines, self.emitter.fixed_lines = self.emitter.fixed_lines, []
        return lines

    def _scaled(self) -> list[str]:
        """Multiply the row's sums by their scales, in place."""
        name = self.name
        points = ", ".join([*operand_pointers(self.kernel), self.sum, "row_scale", column_scale_text(self.geometry),
                            *self.names])
        return [*self.scale_lines(), "if (usual) {",
                *indent(self.table.steps("first", "last", [f"{self.sum} *= row_scale * column_scale[v];"], UNROLL)),
                "} else {", "#pragma unroll 1", "  for (int o = first; o < last; ++o)",
                f"    {self.sum} = {name}_careful({points});", "}"]

    def _folded(self, reduction: Reduction) -> Callable[[str, str, str], list[str]]:
        """How `reduced_lines` folds a reduction's expression over a row."""
        def fold(kind: str, result: str, term: str) -> list[str]:
            self.emitter.start_walk("")
            value = as_float(self.emitter, self.table.without(reduction.expression))
            step = [*straight(self.emitter), f"{result} = {TAKES[kind].format(result, term.format(value))};"]
            return [*self._fixed(), f"float {result} = {STARTS[kind]};", *self._walk(step),
                    *self.exchanged(kind, result)]

        return fold


class ReducingPairWalk(PairPositions, ReducingWalk):
    """A thread takes one of 128 positions. Raises ValueError where channels are neighbours in the output."""

    comment = "a thread takes one of 128 positions, and reduces its channels before it stores"
    place = "thread"
    row_stride, pitch = 2, PITCH

    def __init__(self, geometry: Geometry, name: str) -> None:
        if turns(geometry.kernel):
            raise ValueError(f"{name}: no tiles of two phases of positions where channels are neighbours")
        super().__init__(geometry, name)

    def beyond(self) -> str:
        """As of every walk; of an odd number of positions the second phase has one less."""
        last = len(self.kernel.axes) - 1
        ends = f"u{last} * 2 + thread % 2 >= {self.kernel.axes[last].out_size}"
        return " || ".join(filter(None, [super().beyond(), ends * (self.kernel.axes[last].out_size % 2)]))

    def channels(self) -> list[str]:
        """All of them."""
        return [f"constexpr int first = 0, last = {self.kernel.out_channels};"]

    def exchanged(self, kind: str, result: str) -> list[str]:
        """Nothing: a thread has found all."""
        return []
