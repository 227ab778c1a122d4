"""How 128 threads lie over a slab of a contraction's sums: threads on rows, or on neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.gemm.epilogue.column_table import IN_TABLE, ColumnTable
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    coordinates,
    device_function,
    emitter_of,
    guessed,
    ordinary_stores,
    parameter_texts,
    pointers_of,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import (
    column_place,
    column_scale_text,
    row_place,
    row_scale_text,
    without_mark,
)
from kernelwright.codegen.cuda.gemm.problem import SLAB_ROWS, Geometry
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction import Contraction, Tiling
from kernelwright.plan.kernels import Store

#: Steps of a walk at once. Few warps are there to wait for shared memory, and for what else a step loads.
UNROLL = 16
THREADS = 128
_MOST_COLUMNS = 128


def slab_columns(kernel: Contraction, tiling: Tiling) -> int:
    """Columns of a slab: all of a block's, or an equal part of at most 128 where nothing reduces them, of two phases
    64."""
    if kernel.reductions:
        return tiling.columns
    parts = -(-tiling.columns // (_MOST_COLUMNS // tiling.phases))
    while tiling.columns % (8 * parts):
        parts += 1
    return tiling.columns // parts


def holds_channels(kernel: Contraction, tiling: Tiling) -> bool:
    """Whether slabs hold all output channels where the kernel reduces them."""
    return not kernel.reductions or kernel.out_channels <= slab_columns(kernel, tiling)


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


def turns(kernel: Contraction) -> bool:
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


class Walk:
    """What all walks share. ``strides``: of a slab's rows and columns; ``floats``: its size; ``column_table``: where it
    has one; ``row_of``: a thread's row of the slab, where it has one; ``parameters``: (C type, name) of pointers that
    `NAME_finish` takes besides tensors and scales; ``emitter_kind``: of `emitter_with`; ``support``: the snippets that
    it names itself."""

    comment = ""
    strides: tuple[int, int] = (0, 0)
    floats = 0
    emitter: PointEmitter
    column_table: ColumnTable | None = None
    row_of = ""
    parameters: tuple[tuple[str, str], ...] = ()
    emitter_kind: type[PointEmitter] = PointEmitter
    support: frozenset[str] = frozenset()

    def __init__(self, geometry: Geometry, name: str) -> None:
        self.geometry, self.name, self.kernel = geometry, name, geometry.kernel
        self.stores = ordinary_stores(self.kernel)
        self.columns = slab_columns(self.kernel, geometry.tiling)
        self.names = ("n", "g", "o", *(f"p{a}" for a in range(len(self.kernel.axes))))
        past = geometry.blocks[0] * geometry.tiling.rows
        self.kind = "long long" if past >= 2**31 else "int"

    @property
    def table(self) -> ColumnTable:
        """The table of columns, of a walk that has one."""
        assert self.column_table is not None, self.name
        return self.column_table

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        raise NotImplementedError

    def helpers(self) -> list[str]:
        """The functions that ``NAME_finish`` calls besides those of all walks."""
        return []

    def row_scale(self) -> str:
        """``NAME_row_scale``, which a core calls before it puts sums into a slab: the load is under way meanwhile. No
        text where `NAME_finish` takes no such scale."""
        if not self.row_of or not self.geometry.scaled:
            return ""
        return device_function(
            f"The scale of a thread's row{', with its sign' * guessed(self.geometry, 'left')}.", "float",
            f"{self.name}_row_scale",
            ["const float* __restrict__ left_scales", "int thread", "int group", "long long first_row"],
            ["const int g = group;"] * (self.kernel.groups > 1)
            + [f"const {self.kind} row = first_row + {self.row_of};", f"if (row >= {self.geometry.rows}) return 1.0f;",
               coordinates(self.geometry, self.kind)[0], f"return {row_place(self.geometry)};"])

    def scale_lines(self) -> list[str]:
        """Define ``row_scale`` from ``scale_of_row``, which `NAME_finish` takes, and ``usual``; of scaled operands."""
        if not self.geometry.scaled:
            return []
        return [f"const float row_scale = {without_mark(self.geometry, 'scale_of_row')};",
                *self.table.usual("row_scale")]

    def emitter_with(self, table: ColumnTable) -> PointEmitter:
        """An emitter of walks over columns that takes what it can from the table, and has met nothing."""
        roots = [table.without(r.expression) for r in (*self.kernel.reductions, *self.kernel.totals)]
        emitter = emitter_of(self.kernel, self.kernel.domain, self.names, roots, table.stores(self.stores),
                             walked=(2,), kind=self.emitter_kind)
        for number in range(len(table.values)):
            emitter.reduced[IN_TABLE, number] = f"column{number}[v]"
        return emitter

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

    def beyond(self) -> str:
        """The condition of rows that are no positions of the class, of u0, u1, ...; empty where all are."""
        several = len(self.geometry.classes) > 1
        counts = [self._class(a)[1] for a in range(len(self.kernel.axes))]
        return " || ".join(f"u{a} >= {count}" for a, count in enumerate(counts)
                           if several or isinstance(count, str) or count < self.geometry.extents[a])

    def position(self, leave: str = "") -> list[str]:
        """Define n and p0, p1, ... of ``row``; ``leave`` where it is no position of the class."""
        lines, beyond = coordinates(self.geometry, self.kind), self.beyond()
        if beyond and leave:
            lines.append(f"if ({beyond}) {leave};")
        for a, axis in enumerate(self.kernel.axes):
            first = self._class(a)[0]
            step = f"u{a} * {axis.out_stride}" if axis.out_stride > 1 else f"u{a}"
            lines.append(f"const int p{a} = {step}{f' + {first}' if first else ''};")
        return lines


class RowWalk(Walk):
    """Positions are neighbours: a thread takes a row, and half of the columns."""

    comment = "a thread takes a row, and walks over half of the columns"
    row_of = f"thread % {SLAB_ROWS}"

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        # Fragments of a core's threads lie 8 rows x 4 pairs of columns: 2 * 68 is 8 modulo 32 banks.
        self.strides = (1, SLAB_ROWS + 4)
        self.floats = self.columns * (SLAB_ROWS + 4)
        roots = (*self.stores, *self.kernel.totals)
        self.column_table = ColumnTable(geometry, name, tuple(root.expression for root in roots),
                                        entries=not self.kernel.totals)
        self.emitter = self.emitter_with(self.table)
        write_stores(self.emitter, self.kernel, self.table.stores(self.stores))

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        half = self.columns // 2
        return ["const int g = group;", f"const {self.kind} row = first_row + {self.row_of};",
                f"if (row >= {self.geometry.rows}) return;", *self.position("return"),
                f"const int first = first_column + thread / {SLAB_ROWS} * {half};",
                f"const int last = {self.end(f'first + {half}')};",
                *self.finished(f"sums[thread % {SLAB_ROWS} + (o - first_column) * {self.strides[1]}]", "first")]

    def end(self, text: str) -> str:
        """The column ``text``, or the last one where the tile's may pass it."""
        whole = self.kernel.out_channels % self.geometry.tiling.columns == 0
        return text if whole else f"min({text}, {self.kernel.out_channels})"

    def finished(self, raw: str, first: str) -> list[str]:
        """The statements that finish the columns from ``first`` to ``last`` of a thread's row: ``raw`` is a sum."""
        scaled, name = self.geometry.scaled, self.name
        lines = [*self.table.begins(first), *self.scale_lines(), *self.emitter.fixed_lines]
        step = [f"const float sum = {raw}{' * (row_scale * column_scale[v])' * scaled};", *straight(self.emitter)]
        lines += self.table.steps(first, "last", step, UNROLL)
        if scaled:
            lines += ["if (usual) return;", "#pragma unroll 1",
                      f"for (int o = {first}; o < last; ++o) {name}_again({raw}, {', '.join(self.names)});"]
        return lines


class ChannelWalk(Walk):
    """Channels are neighbours: a thread takes 4 columns (1 where 4 do not divide them), and walks over rows."""

    comment = "a thread takes neighbouring columns, and walks over rows"

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        # Rows of a core's fragments fall 8 or 24 banks apart; reads are contiguous.
        pitch = self.columns + (8 - self.columns) % 16
        self.strides = (pitch, 1)
        self.floats = SLAB_ROWS * pitch
        self.lanes = 4 if self.kernel.out_channels % 4 == 0 else 1
        walked = tuple(a for a in range(len(self.names)) if a not in (1, 2))
        self.emitter = emitter_of(self.kernel, self.kernel.domain, self.names, (), self.kernel.stores, walked=walked,
                                  lane_axis=2, lanes=self.lanes)
        write_stores(self.emitter, self.kernel, self.kernel.stores)

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        kernel, lanes, scaled, name = self.kernel, self.lanes, self.geometry.scaled, self.name
        across = self.columns // lanes
        down = THREADS // across
        lines = ["const int g = group;"]
        if across * down < THREADS:
            lines.append(f"if (thread >= {across * down}) return;")
        times = f" * {lanes}" if lanes > 1 else ""
        lines += [f"const int o = first_column + thread % {across}{times};",
                  f"if (o >= {kernel.out_channels}) return;",
                  f"const int last = min({SLAB_ROWS}LL, {self.geometry.rows} - first_row);"]
        if scaled and lanes > 1:
            signs = guessed(self.geometry, "right")
            lines += [f"float column_scale[{lanes}];",
                      f"kw_read4(column_scale, right_scales + {column_place(self.geometry)});", "bool usual = true;",
                      "#pragma unroll", f"for (int v = 0; v < {lanes}; ++v) {{",
                      *["  column_scale[v] = fabsf(column_scale[v]);"] * signs,
                      f"  usual = {name}_usual(column_scale[v]) && usual;", "}"]
        elif scaled:
            lines += [f"const float column_scale = {column_scale_text(self.geometry)};",
                      f"bool usual = {name}_usual(column_scale);"]
        raw = f"sums[r * {self.strides[0]} + o - first_column]"
        position = [f"const {self.kind} row = first_row + r;", *self.position("continue")]
        step = list(position)
        if scaled:
            step += [f"const float row_scale = {row_scale_text(self.geometry)};",
                     f"usual = {name}_usual(row_scale) && usual;"]
        if lanes > 1:
            step += [f"float sum[{lanes}];", f"kw_read4(sum, &{raw});"]
            if scaled:
                step += ["#pragma unroll",
                         f"for (int v = 0; v < {lanes}; ++v) sum[v] *= row_scale * column_scale[v];"]
        else:
            step.append(f"const float sum = {raw}{' * (row_scale * column_scale)' * scaled};")
        loop = f"for (int r = thread / {across}; r < last; r += {down}) {{"
        lines += [*self.emitter.fixed_lines, f"#pragma unroll {4 if kernel.axes else 8}", loop,
                  *indent([*step, *straight(self.emitter)]), "}"]
        if scaled:
            points = ", ".join("o + v" if axis == "o" and lanes > 1 else axis for axis in self.names)
            shifted = f"sums[r * {self.strides[0]} + o + v - first_column]" if lanes > 1 else raw
            call = f"{name}_again({shifted}, {points});"
            if lanes > 1:
                call = f"for (int v = 0; v < {lanes}; ++v) {call}"
            lines += ["if (usual) return;", "#pragma unroll 1", loop,
                      *indent([*position, *(["#pragma unroll 1"] if lanes > 1 else []), call]), "}"]
        return lines
