"""Pools from an epilogue subtile: a sum or an extremum over each window of neighbouring positions.

Windows lie along the last axis, along which the geometry has a multiple of their size of row coordinates. So they lie
in a subtile at multiples of their size, and none of them in two: of 64 rows, or of 64 rows of both output phases,
element (row, phase, column) at 2 * row + phase + column * pitch as in tiles of two phases without pools. Where a window
has two lines they are the two phases of a tile, and its sums are neighbours in a subtile again, those of both lines in
turn.

A thread takes one window and a part of the columns. Of each column it reads the window's sums, which are neighbours in
shared memory, evaluates what is pooled at each of them, line after line, and writes what is stored of the window:
neighbouring threads have neighbouring windows. Positions behind the last whole window are dropped.

With windows of 2 x 2 a convolution then stores a quarter of its positions, and no kernel behind it reads a half and
writes a quarter: of N bytes of results N / 4 go to memory in place of 5 N / 4. But a tile has sums of both lines, whose
taps have entries of w of their own: w is brought once for the rows of a line, where a tile of as many sums of one line
brings it once for twice the rows.
"""

from __future__ import annotations

import re

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import POSITION
from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, READ, ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    UNROLL,
    EpilogueOperation,
    channels_fastest,
    write_stores,
)
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    PointEmitter,
    as_float,
    emitter_of,
    straight,
)
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import reductions_of
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression


def refusal(kernel: Contraction, tiling: Tiling) -> str:
    """Why tiles of ``tiling`` do not pool what the kernel pools; empty where they do.

    Of kernels without pools empty, too, but where a tile has two lines: what is stored of each sum takes both output
    phases of a tile for those of the last axis.
    """
    if not kernel.pools:
        return "two lines in a tile without pools" if kernel.pool_lines > 1 and tiling.parities > 1 else ""
    if kernel.reductions or kernel.position_reductions:
        return "pools beside other reductions"
    if not kernel.axes:
        return "pools of a product without positions"
    if any(pool.kind not in STARTS or reductions_of(pool.expression) - {0} for pool in kernel.pools):
        return f"pools other than {', '.join(STARTS)} of what sums give"
    if any(not reductions_of(store.expression) or 0 in reductions_of(store.expression) for store in kernel.stores):
        return "stores of sums beside pools"
    if channels_fastest(kernel, kernel.stores[0]):
        return "pools where channels are neighbours in the output"
    if kernel.pool_planes > 1:
        return f"pools of {kernel.pool_planes} planes"
    if kernel.pool_lines > 1 and (kernel.pool_lines > 2 or len(kernel.axes) < 2 or kernel.axes[-1].out_stride > 1):
        return f"pools of {kernel.pool_lines} lines of {kernel.axes[-1].out_stride} output phases"
    axis = kernel.axes[kernel.parity_axis]
    if axis.out_stride != tiling.parities:
        where = "last axis" if kernel.pool_lines == 1 else "axis of lines"
        return f"pools in tiles of {tiling.parities} of {axis.out_stride} output phases of the {where}"
    positions = SUBTILE_ROWS * tiling.parities // kernel.pool_lines
    if kernel.pool_size < 2 or positions % kernel.pool_size:
        return f"pools of {kernel.pool_size} among {positions} positions"
    return ""


class WindowEmitter(PointEmitter):
    """A PointEmitter of stores, in whose steps every pool has a value of its own."""

    def depends(self, node: Expression) -> tuple[bool, bool]:
        row, lane = super().depends(node)
        return row or node.reduced, lane


class _EmitterWithin(WindowEmitter):
    """The same where its names are to differ from those that the emitter of positions gives in the same step."""

    def fresh(self, prefix: str) -> str:
        return super().fresh(f"w{prefix}")


class Pool(EpilogueOperation):
    """A thread takes a window of positions, and loops over a part of the columns.

    ``emitter`` is over positions, of which a window's are lanes; ``windows`` is over what is stored. It takes what
    `refusal` has no words for.
    """

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        kernel, phases, self.lines = self.kernel, geometry.tiling.parities, self.kernel.pool_lines
        self.size = kernel.pool_size * self.lines
        self.strides = (phases, phases * SUBTILE_ROWS + 4)  # as of subtiles without pools
        self.floats = self.columns * self.strides[1]
        self.across = phases * SUBTILE_ROWS // self.size
        self.rows_each = self.size // phases
        self.layout = self.spread(self.across)
        self.window = self.layout.of_thread(POSITION)
        self.row_of = f"{self.window} * {self.rows_each}" if self.rows_each > 1 else self.window
        window = f"{self.size}{', of two lines' * (self.lines > 1)}"
        self.comment = f"a thread takes a window of {window}, and a part of the columns"
        parts = (*kernel.pools, *kernel.stores)
        self.column_table = ColumnTable(geometry, name, tuple(part.expression for part in parts), entries=True)
        self.pooled = [self.table.without(pool.expression) for pool in kernel.pools]
        stores = self.table.stores(kernel.stores)
        last = len(self.names) - 1
        # The lanes of a step are a line of the window; of two lines the axis before it changes with every step, too.
        self.emitter = emitter_of(kernel, kernel.domain, self.names, self.pooled,
                                  walked=(2,) if self.lines == 1 else (2, last - 1), lane_axis=last,
                                  lanes=kernel.pool_size)
        names = (*self.names[:-1], "j") if self.lines == 1 else (*self.names[:-2], "i", "j")
        self.windows = emitter_of(kernel, kernel.pooled_domain, names, (), stores, walked=(2,), kind=_EmitterWithin)
        for number in range(len(self.table.values)):
            self.emitter.reduced[IN_TABLE, number] = self.windows.reduced[IN_TABLE, number] = f"own_column{number}"
        self._pool()
        write_stores(self.windows, kernel, stores)
        self.emitter.used |= self.windows.used
        self.emitter.vectors |= self.windows.vectors

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        lines = ["const int g = group;", f"const {self.kind} row = first_row + {self.row_of};",
                 f"if (row >= {self.geometry.rows}) return;", *self.position("return"),
                 *[f"const int i = u{len(self.kernel.axes) - 2};"] * (self.lines > 1),
                 f"const int j = unsigned({self.names[-1]}) / {self.kernel.pool_size}u;",
                 *self.part(self.across),
                 f"float* const window = sums + {self.window} * {self.size};",
                 *self.table.begins("first"), *self.scale_lines()]
        if self.geometry.scaled:
            lines += self._rescaled()
        lines += [*self.emitter.fixed_lines, *self.windows.fixed_lines]
        return lines + self.table.steps("first", "last", self._step(), max(READ, UNROLL // self.size))

    def _class(self, axis: int) -> tuple[str, str] | tuple[int, int]:
        """As of every operation; along the last axis positions end where whole windows do, and so do lines."""
        if axis == len(self.kernel.axes) - 1:
            return 0, self.kernel.pooled_domain[-1] * self.rows_each
        return (0, self.kernel.pooled_domain[-2]) if self.lines > 1 and axis == self.kernel.parity_axis \
            else super()._class(axis)

    def _rescaled(self) -> list[str]:
        """Finish sums in place whose scales leave the fast path."""
        place = f"window[(o - first_column) * {self.strides[1]} + v]"
        before, last = self.names[-2:]
        spatial = [before, f"{last} + v"] if self.lines == 1 else [f"{before} + v % 2", f"{last} + v / 2"]
        rescaled = self.rescaled(place, [*self.names[:-2], *spatial])
        return ["if (!fast) {", "#pragma unroll 1", "  for (int o = first; o < last; ++o)", "#pragma unroll 1",
                f"    for (int v = 0; v < {self.size}; ++v)", f"      {place} = {rescaled};", "}"]

    def _pool(self) -> None:
        """Give the emitter of positions what becomes of each of a window's: it is scaled, and pools take it."""
        sum_ = "sum[v]" if self.lines == 1 else "sum[2 * v + line]"
        if self.geometry.scaled:
            self.emitter.lane_lines.append(f"{sum_} *= scale;")
        self.emitter.reduced[0, 0] = sum_
        for number, (pool, expression) in enumerate(zip(self.kernel.pools, self.pooled, strict=True), 1):
            name, value = f"pool{number}", as_float(self.emitter, expression)
            self.emitter.lane_lines.append(f"{name} = {TAKES[pool.kind].format(name, value)};")
            self.windows.reduced[number, 0] = name

    def _step(self) -> list[str]:
        """What is done for column ``o``."""
        at = f"window[(o - first_column) * {self.strides[1]}]"
        if self.size == 2:
            lines = [f"const float2 both = *reinterpret_cast<const float2*>(&{at});",
                     "float sum[2] = {both.x, both.y};"]
        else:
            lines = [f"float sum[{self.size}];", "#pragma unroll",
                     f"for (int e = 0; e < {self.size}; e += 4) kw_read4(sum + e, &{at} + e);"]
        if self.geometry.scaled:
            lines.append("const float scale = fast ? row_scale * column_scale[v] : 1.0f;")
        line = straight(self.emitter)
        if self.lines > 1:
            name = self.names[-2]
            at = [f"const int {name} = 2 * i + line;"] if re.search(rf"\b{name}\b", "\n".join(line)) else []
            line = ["#pragma unroll", "for (int line = 0; line < 2; ++line) {", *indent([*at, *line]), "}"]
        work = [*(f"float pool{number} = {STARTS[pool.kind]};" for number, pool in enumerate(self.kernel.pools, 1)),
                *line, *straight(self.windows)]
        lines += [f"const float own_column{number} = column{number}[v];" for number in range(len(self.table.values))]
        return [*lines, *work]
