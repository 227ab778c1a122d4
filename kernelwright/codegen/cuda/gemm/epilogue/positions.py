"""Positions of convolutions as they lie in memory: runs, and the ordinals of positions in them.

Rows of a subtile that are no positions (what packing puts between the lines of x) leave gaps in what a tile stores. The
*ordinal* of a position is its number among the positions of its class, in the order of rows; positions of a *run*,
which neighbouring ordinals share, are neighbours in memory: all of an image, or a line of it where other lines belong
to other classes, or where something else than what is stored moves along it in other steps.

Where tiles have both output phases of a line of odd length, ordinals count one place more than it has positions, so
that both phases of a row are neighbours from an even ordinal on, in shared memory, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL
from kernelwright.codegen.cuda.gemm.epilogue.column_table import ColumnTable
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import EpilogueOperation, subtile_columns, write_stores
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    coordinates,
    device_function,
    emitter_of,
    entry_type,
)
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Index, Load, replaced
from kernelwright.plan.kernels import Store

#: Floats of a subtile at most.
_MOST_FLOATS = 128 * 64


def outer_axes(geometry: Geometry) -> int | None:
    """How many of the first axes are not part of a run of positions; None where positions are no neighbours."""
    axes, phases = geometry.kernel.axes, geometry.tiling.parities
    if not axes or axes[-1].out_stride != phases:
        return None
    outer = len(axes) - 1
    while axes[-1].out_size % phases == 0 and outer and axes[outer - 1].out_stride == 1:
        outer -= 1
    return outer


def domain_of_runs(kernel: Contraction, outer: int) -> tuple[int, ...]:
    """The domain of the stores with all axes of a run as one."""
    domain = kernel.domain
    return *domain[:3 + outer], prod(domain[3 + outer:])


def collapsed(stores: Sequence[Store], kernel: Contraction, outer: int) -> tuple[Store, ...] | None:
    """The stores over `domain_of_runs`; None where some index does not move along a run in equal steps."""
    def place(index: Index) -> Index:
        step, inner = None, 1
        for stride, size in zip(reversed(index.strides[3 + outer:]), reversed(kernel.domain[3 + outer:]), strict=True):
            if size > 1:
                if stride % inner or step not in (None, stride // inner):
                    raise ValueError(index)
                step = stride // inner
            inner *= size
        return Index((*index.strides[:3 + outer], step or 0), index.offset)

    def load(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        guards = tuple(replace(guard, index=place(guard.index)) for guard in node.guards)
        return replace(node, index=place(node.index), guards=guards)

    try:
        return tuple(replace(store, index=place(store.index), expression=replaced(store.expression, load))
                     for store in stores)
    except ValueError:
        return None


def subtile_of_tile(geometry: Geometry) -> tuple[int, int]:
    """Columns of a subtile without gaps, and its height in products of 64 rows: all that a tile has."""
    tiling, columns = geometry.tiling, subtile_columns(geometry.kernel, geometry.tiling)
    while columns * tiling.rows * tiling.parities > _MOST_FLOATS and columns % 16 == 0:
        columns //= 2
    return columns, tiling.rows // SUBTILE_ROWS


class StoreRuns(EpilogueOperation):
    """Stores of positions without gaps between them. A column of a subtile holds the ordinals of its rows from
    ``multiple`` on at or before the first one; ``outer`` axes are no part of a run."""

    multiple = 1

    def __init__(self, geometry: Geometry, name: str, outer: int) -> None:
        super().__init__(geometry, name)
        phases = self.phases
        if phases * geometry.blocks[0] * geometry.tiling.rows >= 2**31:
            self.kind = "long long"  # ordinals count positions
        self.outer = outer
        self.domain = domain_of_runs(self.kernel, outer)
        #: Positions of a run, and the ordinals that it takes.
        self.run = self.domain[-1]
        self.ordinals = -(-self.run // phases) * phases
        self.columns, self.height = subtile_of_tile(geometry)
        self.positions = phases * SUBTILE_ROWS * self.height
        # A multiple of 4 floats, and 4 or 12 modulo 16: a core's fragments lie 8 rows x 4 pairs of columns.
        self.strides = (phases, self.positions + 4)
        self.floats = self.columns * self.strides[1]
        self.column_table = ColumnTable(geometry, name, tuple(store.expression for store in self.stores))

    def emit(self, walked: tuple[int, ...], lanes: int, kind: type[PointEmitter]) -> None:
        """Give the operation an emitter of its stores, whose ``lanes`` are neighbours of a run, called d."""
        stores = collapsed(self.table.stores(self.stores), self.kernel, self.outer)
        assert stores is not None  # as who makes an iteration over runs has looked
        last = len(self.domain) - 1
        self.emitter = emitter_of(self.kernel, self.domain, (*self.names[:3 + self.outer], "d"), (), stores,
                                  walked=walked, lane_axis=last, lanes=lanes, kind=kind)
        self.name_columns(self.emitter, "own_column{}")
        write_stores(self.emitter, self.kernel, stores)

    def helpers(self) -> list[str]:
        """``NAME_ordinal``, and ``NAME_row_place``, which the core calls."""
        return [self._ordinal(), self._place()]

    def part(self, across: int) -> list[str]:
        """Define ``low`` and ``high``: the columns of a thread, where so many threads share the positions."""
        part = self.part_of(across)
        return [f"const int low = first_column + {self.layout.of_thread(CHANNEL)};",
                f"const int high = min(min(low + {part}, first_column + {self.columns}), {self.kernel.out_channels});"]

    def unsigned(self, text: str) -> str:
        """An ordinal, or a number of them, as an unsigned number."""
        return f"{'unsigned' if self.kind == 'int' else '(unsigned long long)'}({text})"

    def places(self, rest: str) -> list[str]:
        """Define n and the positions along outer axes of the run with the number ``rest``, which is unsigned."""
        lines = []
        for a in reversed(range(self.outer)):
            first, count = self._class(a)
            stride = self.kernel.axes[a].out_stride
            step = f"int({rest} % {count})" + f" * {stride}" * (stride > 1)
            lines.append(f"const int p{a} = {step}{f' + {first}' if first else ''};")
            rest = f"{rest} / {count}"
        return [*lines, f"const {entry_type(self.kernel)} n = {rest};"]

    def rewrite(self, value: str, position: str) -> list[str]:
        """Rewrite an element of column ``o`` whose scales leave the fast path: ``value`` at ``position`` of its run."""
        axes, places, rest = self.kernel.axes, [], f"unsigned({position})"
        for a in reversed(range(self.outer, len(axes))):
            places.append(f"const int p{a} = {rest}" + (f" % {axes[a].out_size}u;" if a > self.outer else ";"))
            rest = f"{rest} / {axes[a].out_size}u"
        return [*places, f"{self.name}_rewrite({value}, {', '.join(self.names)});"]

    def _ordinal(self) -> str:
        """``NAME_ordinal``: the places of a class that come before a row."""
        kernel, phases, rows = self.kernel, self.geometry.tiling.parities, self.geometry.rows
        lines = [*coordinates(self.geometry, self.kind), f"bool in_bounds = row < {rows};",
                 f"{self.kind} ordinal = in_bounds ? n : {kernel.batch};"]
        for a, axis in enumerate(kernel.axes):
            both = phases == 2 and a == len(kernel.axes) - 1
            count = -(-axis.out_size // 2) if both else self._class(a)[1]
            all_of, u = (2 * count, f"2 * u{a}") if both else (count, f"u{a}")
            lines += [f"ordinal = ordinal * {all_of} + (in_bounds ? min({u}, {all_of}) : 0);",
                      f"in_bounds = in_bounds && u{a} < {count};"]
        lines += ["if (is_position != nullptr) *is_position = in_bounds;", "return ordinal;"]
        return device_function("The number of positions that come before a row, and whether it is one.", self.kind,
                               f"{self.name}_ordinal",
                               [f"{self.kind} row", "int phase_class", "bool* is_position = nullptr"],
                               lines)

    def _place(self) -> str:
        """``NAME_row_place``: where a row of a subtile lies in its columns."""
        begin = f"begin / {self.multiple} * {self.multiple}" if self.multiple > 1 else "begin"
        return device_function(
            f"Where row {'(of two positions) ' * (self.geometry.tiling.parities == 2)}number `row` of a subtile that "
            "begins at first_row lies in its columns; -1: it is no position.", "int", f"{self.name}_row_place",
            [f"{self.kind} first_row", "int row", "int phase_class"], [
                "bool is_position;",
                f"const {self.kind} ordinal = {self.name}_ordinal(first_row + row, phase_class, &is_position);",
                f"const {self.kind} begin = {self.name}_ordinal(first_row, phase_class);",
                f"return is_position ? int(ordinal - {begin}) : -1;"])
