"""The epilogue of convolutions whose positions lie one behind the other in memory: four of them at a time.

Rows of a slab that are no positions (what packing puts between the lines of x) leave gaps, and so a thread that takes a
row writes beside multiples of 32 bytes. That is what the device does worst: of 254 positions a line it takes 1.5 TB/s
from warps of 32 rows each, 2.3 from warps of 64, and 3.8 where lines begin at multiples of 32 bytes
(benchmarks/result_stores.py on an H200). A sector of 32 bytes that two stores share costs as much as six others.

So sums are put into the slab without the gaps. The *ordinal* of a position is its number among the positions of its
class, in the order of rows; positions of a *run*, which neighbouring ordinals share, are neighbours in memory: all of
an image, or a line of it where other lines belong to other classes. A column of a slab holds the positions of its rows
from a multiple of 4 on; as runs are multiples of 4 long, chunks of 4 ordinals are aligned here and in memory. A thread
takes one chunk and walks over columns, as in other walks a thread takes a row: what it needs of the place is computed
once. A slab is 128 rows high where a warpgroup has as many, so that a warp stores 512 bytes at once.

Tiles overlap by a few rows (``tiling.overlap``), of which either could store the positions. A sector, two chunks, is
stored by the tile that has the ordinal of its first element among those from its own first one to that of the next
tile. It has all of them: `least_overlap` counts the rows. No sector is shared, but for those of runs whose length is no
multiple of 8, and of planes of a run in space, where rows that are no positions may be too many to be had twice.

Instructions of a warp for 128 sums, beside those of a tile: 4 stores to shared memory, one read and one store, 4 to 8
for the scales; where threads take rows they were 4 * (store, read, store, 3 to 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelwright.codegen.contraction_geometry import Geometry
from kernelwright.codegen.cuda.contraction_epilogue_columns import IN_TABLE, READ, ColumnTable
from kernelwright.codegen.cuda.contraction_epilogue_scales import row_scale_text
from kernelwright.codegen.cuda.contraction_epilogue_walks import (
    SLAB_ROWS,
    THREADS,
    Walk,
    slab_columns,
    stores_channels,
    write_stores,
)
from kernelwright.codegen.cuda.contraction_points import (
    PointEmitter,
    coordinates,
    device_function,
    emitter_of,
    entry_type,
    ordinary_stores,
    straight,
)
from kernelwright.codegen.cuda.loops_emitter import Buffer
from kernelwright.codegen.cuda.loops_site import indent
from kernelwright.plan.expressions import Expression, Index, Load, replaced
from kernelwright.plan.kernels import Contraction, Store

#: Neighbouring positions that a thread takes, and of a sector of memory (of float32).
CHUNK, SECTOR = 4, 8
#: Columns of a walk at once: of chunks fewer than of single sums.
_UNROLL = 8
#: Floats of a slab at most.
_MOST_FLOATS = 128 * 64


def outer_axes(geometry: Geometry) -> int | None:
    """How many of the first axes are not part of a run of positions; None where positions are no neighbours."""
    axes, phases = geometry.kernel.axes, geometry.tiling.phases
    if not axes or axes[-1].out_stride != phases or axes[-1].out_size % phases:
        return None
    outer = len(axes) - 1
    while outer and axes[outer - 1].out_stride == 1:
        outer -= 1
    return outer


def stores_densely(geometry: Geometry) -> bool:
    """Whether `DenseWalk` can take what a tile of one warpgroup stores: neighbouring positions, in runs and steps that
    are multiples of 4 elements, and nothing that it reads depends on positions in another way than what it stores."""
    kernel, tiling = geometry.kernel, geometry.tiling
    outer = outer_axes(geometry)
    alone = tiling.rows == SLAB_ROWS or (tiling.rows == 2 * SLAB_ROWS and tiling.teams > 1)  # with all of a tile
    if outer is None or tiling.core != "wgmma" or tiling.split > 1 or not alone or kernel.all_reductions \
            or stores_channels(kernel):
        return False
    stores = _collapsed(ordinary_stores(kernel), kernel, outer)
    return stores is not None and all(_is_aligned(store.index, kernel, outer) for store in stores)


def least_overlap(geometry: Geometry) -> int:
    """Rows that tiles must share so that each has whole sectors, a multiple of 4: as many as the rest of a sector has,
    and those between the lines that it touches. Raises ValueError where positions are no neighbours."""
    outer, phases = outer_axes(geometry), geometry.tiling.phases
    if outer is None:
        raise ValueError(f"no neighbours in tiles of {geometry.tiling}")
    rest, line, gaps = -(-(SECTOR - 1) // phases), geometry.kernel.axes[-1].out_size // phases, 0
    if len(geometry.kernel.axes) - outer > 1:
        gaps = -(-rest // line) * (geometry.extents[-1] - line)  # one may come first
    return -(-(rest + gaps) // 4) * 4


def _domain(kernel: Contraction, outer: int) -> tuple[int, ...]:
    """The domain of the stores with all axes of a run as one."""
    domain = kernel.domain
    return *domain[:3 + outer], prod(domain[3 + outer:])


def _plane(kernel: Contraction, outer: int) -> int:
    """Positions of a run without other gaps between them than those of lines."""
    return prod(kernel.domain[max(3 + outer, len(kernel.domain) - 2):])


def _is_aligned(index: Index, kernel: Contraction, outer: int) -> bool:
    """Whether neighbours of a run are neighbours in memory, all else is multiples of 4 elements away, and so are the
    planes of a run in space: between them are rows that no overlap has."""
    *strides, last = index.strides
    sizes = _domain(kernel, outer)
    far = all(stride % CHUNK == 0 or size == 1 for stride, size in zip(strides, sizes, strict=False))
    return last == 1 and far and index.offset % CHUNK == 0 and _plane(kernel, outer) % CHUNK == 0 \
        and sizes[-1] < 2**31


def _collapsed(stores: Sequence[Store], kernel: Contraction, outer: int) -> tuple[Store, ...] | None:
    """The stores over `_domain`; None where some index does not move along a run in equal steps."""
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


class _SectorEmitter(PointEmitter):
    """A PointEmitter of chunks that a tile stores, or leaves to the one before: ``first`` and ``second`` say which, of
    those that begin a sector and of others."""

    def store(self, buffer: Buffer, index: Index, node: Expression) -> None:
        """Write a chunk, if it is the tile's. Columns are a multiple of a sector apart, or of half of one."""
        step = index.strides[2]
        base = self.site.base(replace(index, strides=(*index.strides[:2], 0, *index.strides[3:])))
        odd = self.fresh("odd")
        self.fixed_lines.append(f"const int {odd} = ({base}) / {CHUNK} % 2;")
        self.mine = f"({odd} + o) % 2 ? second : first"
        if step % SECTOR == 0:
            self.mine = self.fresh("mine")
            self.fixed_lines.append(f"const bool {self.mine} = {odd} ? second : first;")
        super().store(buffer, index, node)

    def written(self, pointer: str, values: str) -> list[str]:
        return [f"if ({self.mine}) kw_write4({pointer}, {values});"]


class DenseWalk(Walk):
    """A thread takes a chunk of neighbouring positions, and walks over a part of the columns. Raises ValueError unless
    `stores_densely`."""

    def __init__(self, geometry: Geometry, name: str) -> None:
        super().__init__(geometry, name)
        if not stores_densely(geometry) or geometry.tiling.overlap < least_overlap(geometry):
            raise ValueError(f"{name}: no tiles that overlap: {geometry.tiling}")
        kernel, phases = self.kernel, geometry.tiling.phases
        if phases * geometry.blocks[0] * geometry.tiling.rows >= 2**31:
            self.kind = "long long"  # ordinals count positions
        self.outer = outer_axes(geometry)
        domain = _domain(kernel, self.outer)
        self.run = domain[-1]
        self.columns, self.height = dense_slab(geometry)
        self.positions = phases * SLAB_ROWS * self.height
        self.chunks = self.positions // CHUNK
        self.comment = f"a thread takes {CHUNK} neighbouring positions, and walks over a part of the columns"
        # A multiple of 4 floats, and 4 or 12 modulo 16: a core's fragments lie 8 rows x 4 pairs of columns.
        self.strides = (phases, self.positions + CHUNK)
        self.floats = self.columns * self.strides[1]
        self.table = ColumnTable(geometry, name, tuple(store.expression for store in self.stores))
        stores = _collapsed(self.table.stores(self.stores), kernel, self.outer)
        names = (*self.names[:3 + self.outer], "d")
        last = len(names) - 1
        self.emitter = emitter_of(kernel, domain, names, (), stores, walked=(2,), lane_axis=last, lanes=CHUNK,
                                  kind=_SectorEmitter)
        for number in range(len(self.table.values)):
            self.emitter.reduced[IN_TABLE, number] = f"own_column{number}"
        write_stores(self.emitter, kernel, stores)

    def helpers(self) -> list[str]:
        """``NAME_ordinal``, and ``NAME_row_place``, which the core calls."""
        return [self._ordinal(), self._place()]

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        kind, part = self.kind, -(-self.columns * self.chunks // (THREADS * READ)) * READ
        lines = [
            "const int g = group;",
            "// Ordinals of the tile's first position and of the next tile's.",
            f"const {kind} begin = {self.name}_ordinal(first_row, phase_class);",
            f"const {kind} end = {self.name}_ordinal(first_row + {self.geometry.step}, phase_class);",
            f"const {kind} e = begin / {CHUNK} * {CHUNK} + thread % {self.chunks} * {CHUNK};",
            "const bool first = e >= begin && e < end;", *self._second(), "if (!first && !second) return;",
            *self._decoded("e"), f"const int low = first_column + thread / {self.chunks} * {part};",
            f"const int high = min(min(low + {part}, first_column + {self.columns}), {self.kernel.out_channels});",
            *self.table.begins("low"), *self._row_scale(), *self.emitter.fixed_lines]
        at = f"sums + (o - first_column) * {self.strides[1]} + thread % {self.chunks} * {CHUNK}"
        own = [f"const float own_column{k} = column{k}[v];" for k in range(len(self.table.values))]
        scale = ["const float scale = row_scale * column_scale[v];"] * self.geometry.scaled
        lines += self.table.steps("low", "high", [*own, *scale, *self._sums(at), *straight(self.emitter)], _UNROLL)
        if not self.geometry.scaled:
            return lines
        return [*lines, "if (usual) return;", "#pragma unroll 1", "for (int o = low; o < high; ++o)",
                *indent(self._again())]

    def _second(self) -> list[str]:
        """Define ``second``: whether a chunk is the tile's that does not begin its sector. Where lines of a plane end,
        it may be the first one that there is of it."""
        plane = _plane(self.kernel, self.outer)
        return [f"const {self.kind} before = e % {plane} == 0 ? e : e - {CHUNK};",
                "const bool second = e >= begin && before >= begin && before < end;"]

    def _sums(self, at: str) -> list[str]:
        """Define ``sum``, scaled."""
        lines = [f"float sum[{CHUNK}];", f"kw_read4(sum, {at});"]
        if self.geometry.scaled:
            lines += ["#pragma unroll", f"for (int v = 0; v < {CHUNK}; ++v) sum[v] *= scale;"]
        return lines

    def _row_scale(self) -> list[str]:
        """Define ``row_scale`` and ``usual``, of scaled operands."""
        if not self.geometry.scaled:
            return []
        return [f"const float row_scale = {row_scale_text(self.geometry)};", *self.table.usual("row_scale")]

    def _decoded(self, ordinal: str) -> list[str]:
        """Define n, the positions along outer axes, and d, the place in the run, of an ordinal."""
        unsigned = "unsigned" if self.kind == "int" else "(unsigned long long)"
        lines = [f"const int d = {unsigned}({ordinal}) % {self.run}u;"]
        rest = f"{unsigned}({ordinal}) / {self.run}u"
        if self.outer:
            lines.append(f"const {self.kind} line = {rest};")
            rest = "line"
        for a in reversed(range(self.outer)):
            first, count = self._class(a)
            stride = self.kernel.axes[a].out_stride
            step = f"int({rest} % {count})" + f" * {stride}" * (stride > 1)
            lines.append(f"const int p{a} = {step}{f' + {first}' if first else ''};")
            rest = f"{rest} / {count}"
        return [*lines, f"const {entry_type(self.kernel)} n = {rest};"]

    def _again(self) -> list[str]:
        """Write elements of a thread's chunk of column ``o`` again whose scales are not usual."""
        axes, places, rest = self.kernel.axes, [], "unsigned(d + v)"
        for a in reversed(range(self.outer, len(axes))):
            places.append(f"const int p{a} = {rest}" + (f" % {axes[a].out_size}u;" if a > self.outer else ";"))
            rest = f"{rest} / {axes[a].out_size}u"
        value = f"sums[(o - first_column) * {self.strides[1]} + thread % {self.chunks} * {CHUNK} + v]"
        return ["#pragma unroll 1", f"for (int v = 0; v < {CHUNK}; ++v) {{", *indent([
            *places, f"{self.name}_again({value}, {', '.join(self.names)});"]), "}"]

    def _ordinal(self) -> str:
        """``NAME_ordinal``: the positions of a class that come before a row."""
        kernel, phases, rows = self.kernel, self.geometry.tiling.phases, self.geometry.rows
        lines = [*coordinates(self.geometry, self.kind), f"bool inside = row < {rows};",
                 f"{self.kind} ordinal = inside ? n : {kernel.batch};"]
        for a, axis in enumerate(kernel.axes):
            both = phases == 2 and a == len(kernel.axes) - 1
            count = axis.out_size // 2 if both else self._class(a)[1]
            all_of, u = (axis.out_size, f"2 * u{a}") if both else (count, f"u{a}")
            lines += [f"ordinal = ordinal * {all_of} + (inside ? min({u}, {all_of}) : 0);",
                      f"inside = inside && u{a} < {count};"]
        lines += ["if (there != nullptr) *there = inside;", "return ordinal;"]
        return device_function("The number of positions that come before a row, and whether it is one.", self.kind,
                               f"{self.name}_ordinal", [f"{self.kind} row", "int phase_class", "bool* there = nullptr"],
                               lines)

    def _place(self) -> str:
        """``NAME_row_place``: where a row of a slab lies in its columns."""
        return device_function(
            f"Where row {'(of two positions) ' * (self.geometry.tiling.phases == 2)}number `row` of a slab that begins "
            "at first_row lies in its columns; -1: it is no position.", "int", f"{self.name}_row_place",
            [f"{self.kind} first_row", "int row", "int phase_class"], [
                "bool there;",
                f"const {self.kind} ordinal = {self.name}_ordinal(first_row + row, phase_class, &there);",
                f"const {self.kind} begin = {self.name}_ordinal(first_row, phase_class);",
                f"return there ? int(ordinal - begin / {CHUNK} * {CHUNK}) : -1;"])


def dense_slab(geometry: Geometry) -> tuple[int, int]:
    """Columns of a slab without gaps, and its height in products of 64 rows: all that a tile has."""
    tiling, columns = geometry.tiling, slab_columns(geometry.kernel, geometry.tiling)
    while columns * tiling.rows * tiling.phases > _MOST_FLOATS and columns % 16 == 0:
        columns //= 2
    return columns, tiling.rows // SLAB_ROWS
