"""How the 128 threads of a warpgroup lie over an epilogue subtile of sums: what all operations over one share."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, AccumulatorLayout, over_subtile, wgmma
from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, READ, ColumnTable
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    coordinates,
    device_function,
    emitter_of,
    guessed,
    ordinary_stores,
    parameter_texts,
    pointers_of,
)
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_place, row_scale_text, without_mark
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import Store

#: Steps of a loop over a subtile at once. Few warps are there to wait for shared memory, and for what else is loaded.
UNROLL = 16
THREADS = 128
_MOST_COLUMNS = 128
#: The barrier of the 128 threads that finish a subtile: one of those behind the cores' own.
MEET = f"kw_part_sync(8 + threadIdx.x / {THREADS}, {THREADS});"


def subtile_columns(kernel: Contraction, tiling: Tiling) -> int:
    """Columns of a subtile: all of a block's, or an equal part of at most 128 where nothing reduces them, of two phases
    64."""
    if kernel.reductions:
        return tiling.columns
    parts = -(-tiling.columns // (_MOST_COLUMNS // tiling.parities))
    while tiling.columns % (8 * parts):
        parts += 1
    return tiling.columns // parts


def holds_channels(kernel: Contraction, tiling: Tiling) -> bool:
    """Whether subtiles hold all output channels where the kernel reduces them."""
    return not kernel.reductions or kernel.out_channels <= subtile_columns(kernel, tiling)


def channels_fastest(kernel: Contraction, store: Store) -> bool:
    """Whether output channels are closer to each other in memory than positions, in a store."""
    strides = store.index.strides
    positions = [abs(s) for a, (s, size) in enumerate(zip(strides, kernel.pooled_domain, strict=True))
                 if a not in (1, 2) and size > 1]
    return kernel.out_channels > 1 and abs(strides[2]) < min(positions, default=abs(strides[2]) + 1)


def stores_channels(kernel: Contraction) -> bool:
    """Whether output channels are neighbours in what is stored at every position."""
    stores = ordinary_stores(kernel)
    return bool(stores) and channels_fastest(kernel, stores[0])


def reduced_channels_fastest(kernel: Contraction) -> bool:
    """Whether output channels, which the kernel reduces, are neighbours in what it stores of each."""
    along = [store for store in kernel.stores if store.index.strides[2]]
    return bool(along) and channels_fastest(kernel, along[0])


def write_stores(emitter: PointEmitter, kernel: Contraction, stores: Sequence[Store]) -> None:
    """Give an emitter stores of sums that are called ``sum``."""
    emitter.reduced[0, 0] = "sum" if emitter.site.lanes == 1 else "sum[v]"
    for store in stores:
        emitter.store(Buffer(f"out{store.buffer}", C_TYPES[kernel.output_dtypes[store.buffer]]), store.index,
                      store.expression)


def operand_pointers(kernel: Contraction) -> list[str]:
    """The names of the inputs that the operands read, in the order of `parameter_texts`."""
    return [n for _, n in parameter_texts(kernel, {*pointers_of(kernel.left), *pointers_of(kernel.right)})]


class EpilogueOperation:
    """What all operations over the sums of a tile share: its ``body`` are the statements of ``NAME_finish``.

    ``strides``: of a subtile's rows and columns; ``floats``: its size; ``column_table``: where it has one; ``row_of``:
    a thread's row of the subtile, where it has one; ``phase_of``: its output phase, of tiles of two where it has one;
    ``parameters``: (C type, name) of pointers that `NAME_finish` takes besides tensors and scales; ``emitter_kind``: of
    `emitter_with`; ``support``: the snippets that it names itself; ``in_registers``: whether it takes the registers of
    a warpgroup's whole tile instead of a subtile in shared memory.
    """

    comment = ""
    strides: tuple[int, int] = (0, 0)
    floats = 0
    emitter: PointEmitter
    column_table: ColumnTable | None = None
    row_of = ""
    phase_of: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    emitter_kind: type[PointEmitter] = PointEmitter
    support: frozenset[str] = frozenset()
    in_registers = False
    layout: AccumulatorLayout

    def __init__(self, geometry: Geometry, name: str) -> None:
        self.geometry, self.name, self.kernel = geometry, name, geometry.kernel
        self.phases = geometry.tiling.parities
        self.stores = ordinary_stores(self.kernel)
        self.columns = subtile_columns(self.kernel, geometry.tiling)
        self.names = ("n", "g", "o", *(f"p{a}" for a in range(len(self.kernel.axes))))
        past = geometry.blocks[0] * geometry.tiling.rows
        self.kind = "long long" if past >= 2**31 else "int"

    @property
    def table(self) -> ColumnTable:
        """The table of columns, of an operation that has one."""
        assert self.column_table is not None, self.name
        return self.column_table

    def hold_tile(self) -> None:
        """Have the operation take all sums of a warpgroup's tile: ``sums[set][register]`` with the layout `wgmma`, the
        ``products`` sets of 64 rows of the first output phase, then those of the second."""
        self.columns = self.geometry.tiling.columns
        self.products = Layout(self.geometry, 0).products
        self.sets = self.products * self.phases
        self.layout = wgmma(self.columns, self.products)

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes of the sums: the subtile, or registers."""
        return [f"{'' if self.kernel.all_reductions else 'const '}float* sums"]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        raise NotImplementedError

    def helpers(self) -> list[str]:
        """The functions that ``NAME_finish`` calls besides those of all operations."""
        return []

    def row_scale(self) -> str:
        """``NAME_row_scale``, which a core calls before it puts sums into a subtile: the load is under way meanwhile.
        No text where `NAME_finish` takes no such scale."""
        if not self.row_of or not self.geometry.scaled:
            return ""
        return device_function(
            f"The scale of a thread's row{', with its sign' * guessed(self.geometry, 'left')}.", "float",
            f"{self.name}_row_scale",
            ["const float* __restrict__ left_scales", "int thread", "int group", "long long first_row"],
            ["const int g = group;"] * (self.kernel.groups > 1)
            + [f"const {self.kind} row = first_row + {self.row_of};", f"if (row >= {self.geometry.rows}) return 1.0f;",
               *coordinates(self.geometry, self.kind)[:1 + self.kernel.entry_axes],
               f"return {row_place(self.geometry, 'u')};"])

    def scale_lines(self) -> list[str]:
        """Define ``row_scale`` from ``scale_of_row``, which `NAME_finish` takes, and ``fast``; of scaled operands."""
        if not self.geometry.scaled:
            return []
        return [f"const float row_scale = {without_mark(self.geometry, 'scale_of_row')};",
                *self.table.fast_path("row_scale")]

    def scale_of_place(self) -> list[str]:
        """Define ``row_scale`` of the place, and ``fast``; of scaled operands."""
        if not self.geometry.scaled:
            return []
        return [f"const float row_scale = {row_scale_text(self.geometry)};", *self.table.fast_path("row_scale")]

    def emitter_with(self, table: ColumnTable) -> PointEmitter:
        """An emitter of loops over columns that takes what it can from the table, and has met nothing."""
        roots = [table.without(r.expression) for r in (*self.kernel.reductions, *self.kernel.position_reductions)]
        emitter = emitter_of(self.kernel, self.kernel.domain, self.names, roots, table.stores(self.stores),
                             walked=(2,), kind=self.emitter_kind)
        self.name_columns(emitter, "column{}[v]")
        return emitter

    def name_columns(self, emitter: PointEmitter, text: str) -> None:
        """Tell an emitter what the values of the table are called."""
        for number in range(len(self.table.values)):
            emitter.reduced[IN_TABLE, number] = text.format(number)

    def own_columns(self) -> list[str]:
        """Define each value of the table for column number ``v`` of four."""
        return [f"const float own_column{number} = column{number}[v];" for number in range(len(self.table.values))]

    def rescaled(self, value: str, names: Sequence[str] = ()) -> str:
        """The sum of a place, whatever ``row_scale`` and that of column ``o`` are. names: of the place's axes."""
        points = [*operand_pointers(self.kernel), value, "row_scale", column_scale_text(self.geometry),
                  *(names or self.names)]
        return f"{self.name}_rescaled({', '.join(points)})"

    def tables(self) -> list[str]:
        """Tables of the classes of positions, where there are several."""
        classes = self.geometry.classes
        if len(classes) < 2:
            return []
        rows = ",\n  ".join("{" + ", ".join(f"{{{p}, {n}}}" for p, n in zip(c.phases, c.counts, strict=True)) + "}"
                            for c in classes)
        return [f"// By class of positions and axis: the first position, and the number of them.\n"
                f"static __constant__ int {self.name}_classes[{len(classes)}][{len(self.kernel.axes)}][2] = {{\n"
                f"  {rows}}};\n"]

    def _class(self, axis: int) -> tuple[str, str] | tuple[int, int]:
        """The first position of the class along an axis, and the number of them."""
        if len(self.geometry.classes) > 1:
            own = f"{self.name}_classes[phase_class][{axis}]"
            return f"{own}[0]", f"{own}[1]"
        (only,) = self.geometry.classes
        return only.phases[axis], only.counts[axis]

    def out_of_bounds(self) -> str:
        """The condition of rows that are no positions of the class, of u0, u1, ...; empty where all are."""
        several = len(self.geometry.classes) > 1
        counts = [self._class(a)[1] for a in range(len(self.kernel.axes))]
        return " || ".join(f"u{a} >= {count}" for a, count in enumerate(counts)
                           if several or isinstance(count, str) or count < self.geometry.extents[a])

    def in_bounds(self) -> str:
        """The in-bounds predicate of ``row``: whether it is a position of the class, and its output phase has it."""
        outside = self.out_of_bounds()
        return " && ".join([f"row < {self.geometry.rows}", *[f"!({outside})"] * bool(outside),
                            *[f"{self.names[-1]} < {self.odd_size}"] * bool(self.odd_size)])

    @property
    def odd_size(self) -> int:
        """The size of the last axis where the second of two output phases has one position less, else 0."""
        size = self.kernel.axes[-1].out_size if self.phases == 2 else 0
        return size if size % 2 else 0

    def position(self, leave: str = "", phase: str | None = None) -> list[str]:
        """Define n and p0, p1, ... of ``row``; ``leave`` where it is no position of the class. phase: the output phase
        of the last axis, of tiles of two, where it is not ``phase_of``; empty for the first one."""
        lines, outside = coordinates(self.geometry, self.kind), self.out_of_bounds()
        phase = self.phase_of if phase is None else phase
        own = phase is not None and self.phases == 2
        if outside and leave:
            lines.append(f"if ({outside}) {leave};")
        last = len(self.kernel.axes) - 1
        for a, axis in enumerate(self.kernel.axes):
            first, stride = (phase, 2) if own and a == last else (self._class(a)[0], axis.out_stride)
            step = f"u{a} * {stride}" if stride > 1 else f"u{a}"
            lines.append(f"const int p{a} = {step}{f' + {first}' if first else ''};")
        if own and leave and self.odd_size:
            lines.append(f"if (p{last} >= {self.odd_size}) {leave};")
        return lines

    def row_or_other(self, number: str = "") -> list[str]:
        """Define ``row``, the thread's, and ``in_bounds``: whether it is a position; if not, ``row`` is some other
        one."""
        rows, outside = self.geometry.rows, self.out_of_bounds()
        lines = [f"{self.kind} row = first_row{number} + {self.row_of};"]
        if outside:
            lines += ["bool in_bounds;", "{", *indent([*coordinates(self.geometry, self.kind)[1:],
                                                       f"in_bounds = row < {rows} && !({outside});"]), "}"]
        else:
            lines.append(f"const bool in_bounds = row < {rows};")
        return [*lines, "if (!in_bounds) row = 0;  // some position, of which nothing is written"]

    def end(self, text: str) -> str:
        """The column ``text``, or the last one where the tile's may pass it."""
        whole = self.kernel.out_channels % self.geometry.tiling.columns == 0
        return text if whole else f"min({text}, {self.kernel.out_channels})"

    def spread(self, across: int, neighbours: int = 1) -> AccumulatorLayout:
        """The layout of the threads over the subtile: so many beside each other along positions."""
        return over_subtile(across, self.part_of(across), neighbours)

    def part_of(self, across: int) -> int:
        """The columns of a thread, a multiple of 4, where so many threads share the positions."""
        return -(-self.columns * across // (THREADS * READ)) * READ

    def part(self, across: int) -> list[str]:
        """Define ``first`` and ``last``: the columns of a thread, of its part, of the subtile and of the kernel."""
        part, own = self.part_of(across), self.layout.of_thread(CHANNEL)
        text = f"first + {part}"
        if THREADS // across * part > self.columns:
            text = f"min({text}, first_column + {self.columns})"
        return [f"const int first = first_column{f' + {own}' * (own != '0')};", f"const int last = {self.end(text)};"]
