"""What an epilogue needs of a column alone: its scale, its bias, whatever of the stores depends on (g, o) and no more.

A core computes it once for the columns of a tile, into a table in shared memory, before it multiplies: as a pass over
sums loaded it from global memory, each step waited for loads that stand in line behind the stores of the step before
(on an H200 a third of the time of a convolution's epilogue). Of a table four columns come in one read.

So it is with what depends on the entry of the batch, too, (n, g, o), as statistics of a norm do, where the rows of a
tile are of two entries at most: the table has the columns of both. Only on wgmma.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kernelwright.codegen.cuda.gemm.points import (
    as_float,
    device_function,
    emitter_of,
    loads_of,
    parameter_texts,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Reduced, is_whole, replaced, varies, walk
from kernelwright.plan.kernels import Store

#: Values of a column at most, its scale included.
MOST_VALUES = 4
#: Stands for a value of the table in an expression: ``Reduced(IN_TABLE, number)``.
IN_TABLE = -1
#: Columns that are read at a time, and threads that fill a table.
READ, _THREADS = 4, 128


@dataclass(frozen=True)
class ColumnTable:
    """The values of columns that ``expressions`` (of stores and reductions) need.

    Value k of column c of a tile is ``columns[k * tiling.columns + c]``; the scale is the first one, where operands are
    scaled. Behind them stands, for each of four warps, whether the scales that it saw are of the fast path. ``finite``:
    an infinite scale, which is not, stands there as a finite one, so that it may be multiplied by zero.

    ``entries``: whether passes know of a thread's row its entry n of the batch where they ask for ``values``. Then
    there may be values of entries: all values of the next entry follow, and last, as an integer, the first entry's
    number.
    """

    geometry: Geometry
    name: str
    expressions: tuple[Expression, ...]
    finite: bool = False
    entries: bool = False

    @cached_property
    def values(self) -> tuple[Expression, ...]:
        """What is in the table besides the scale."""
        found = dict.fromkeys(node for root in self.expressions
                              for node in _of_columns(root, self.entries and _may_hold_entries(self.geometry)))
        return tuple(found)[:MOST_VALUES - self.geometry.scaled]

    @cached_property
    def of_entries(self) -> bool:
        """Whether there are values of entries."""
        return any(varies(value, (0,)) for value in self.values)

    @property
    def entry_rows(self) -> int:
        """How many rows an entry has, where there are values of entries; else 0."""
        return self.geometry.pitches[0] * self.of_entries

    @property
    def names(self) -> tuple[str, ...]:
        """What the values are called in a pass, the scale included."""
        return ("column_scale",) * self.geometry.scaled + tuple(f"column{n}" for n in range(len(self.values)))

    @property
    def floats(self) -> int:
        """Size of the table; 0 where there is none."""
        return self._flags_at + 4 * self.geometry.scaled + 4 * self.of_entries

    @property
    def _entry_floats(self) -> int:
        """Size of what is there for one entry."""
        return len(self.names) * self.geometry.tiling.columns

    @property
    def _flags_at(self) -> int:
        """Where it stands what warps saw of scales."""
        return self._entry_floats * (1 + self.of_entries)

    def without(self, expression: Expression) -> Expression:
        """An expression in which values of the table stand for what they are."""
        return replaced(expression, lambda n: Reduced(IN_TABLE, self.values.index(n)) if n in self.values else None)

    def stores(self, stores: Sequence[Store]) -> list[Store]:
        """Stores likewise."""
        return [replace(store, expression=self.without(store.expression)) for store in stores]

    def steps(self, first: str, last: str, body: Sequence[str], unroll: int, fours: bool = False,
              before: Sequence[str] = ()) -> list[str]:
        """The loop of ``body`` over columns ``o`` from ``first``, a multiple of 4 in the tile, to ``last``. ``values``,
        which `begins` defines, points to those of ``first``. ``fours``: ``o`` is ``v`` (0 to 3, which unrolling makes
        constants) behind a multiple of 4, ``c``, in any case. ``before``: what is said of all four."""
        used = [(k, name) for k, name in enumerate(self.names) if any(f"{name}[v]" in line for line in body)]
        if not used and not fours:
            return [f"#pragma unroll {unroll}", f"for (int o = {first}; o < {last}; ++o) {{", *indent(body), "}"]
        columns = self.geometry.tiling.columns
        lines = [*before, *([f"float {', '.join(f'{name}[{READ}]' for _, name in used)};"] if used else [])]
        for k, name in used:
            at = f"values{f' + {k * columns}' * (k > 0)} + (c - {first})"
            lines.append(f"kw_read4({name}, {at});")
        ragged = self.geometry.kernel.out_channels % READ
        return [f"#pragma unroll {unroll // READ}", f"for (int c = {first}; c < {last}; c += {READ}) {{",
                *indent([*lines, "#pragma unroll", f"for (int v = 0; v < {READ}; ++v) {{", *indent(
                    ["const int o = c + v;", *[f"if (o >= {last}) break;"] * (ragged > 0), *body]), "}"]), "}"]

    def begins(self, first: str) -> list[str]:
        """Define ``values``, the table from column ``first`` on; of values of entries, for n."""
        entry = f" + {self.entry('n')}" * self.of_entries
        return [f"const float* const values = columns + {first} % {self.geometry.tiling.columns}{entry};"] \
            * (self.floats > 0)

    def entry(self, n: str) -> str:
        """Where the values of entry ``n`` begin, of the two that are there."""
        at = self._flags_at + 4 * self.geometry.scaled
        return f"({n} == __float_as_int(columns[{at}]) ? 0 : {self._entry_floats})"

    @property
    def used(self) -> set[str]:
        """The names of the inputs that the table's values read."""
        return {f"in{load.buffer}" for load in loads_of(self.values)}

    def fast_path(self, row: str) -> list[str]:
        """Define ``fast``: whether the scale called ``row`` is of the fast path, and all of the tile's columns. Before
        a pass: behind it the read would wait until the stores have taken their registers."""
        return ["float columns_fast[4];", f"kw_read4(columns_fast, columns + {self._flags_at});",
                f"const bool fast = {self.name}_is_fast({row}) & "
                "(columns_fast[0] * columns_fast[1] * columns_fast[2] * columns_fast[3] > 0.0f);"]

    @property
    def all_fast(self) -> str:
        """Whether the scales of all columns are of the fast path."""
        return " * ".join(f"columns[{self._flags_at + warp}]" for warp in range(4)) + " > 0.0f"

    @cached_property
    def definition(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """``NAME_columns``, which 128 threads call to fill a table, and (C type, name) of the pointers that it takes
        first; no text where there is no table. Of values of entries it takes the first entry last."""
        kernel, tiling, scaled = self.geometry.kernel, self.geometry.tiling, self.geometry.scaled
        if not self.floats:
            return "", ()
        names = ("n", "g", "o", *(f"p{a}" for a in range(len(kernel.axes))))
        emitter = emitter_of(kernel, kernel.domain, names, self.values, walked=(2,))
        texts = [as_float(emitter, value) for value in self.values]
        lines = straight(emitter)
        if scaled:
            lines += [f"const float scale = {column_scale_text(self.geometry)};",
                      f"fast = {self.name}_is_fast(scale) && fast;"]
            texts.insert(0, "fminf(scale, 0x1p126f)" if self.finite else "scale")
        entry = f"next * {self._entry_floats} + " * self.of_entries
        lines += [f"columns[{entry}{f'{k * tiling.columns} + ' * (k > 0)}c] = {text};" for k, text in enumerate(texts)]
        fill = [*emitter.fixed_lines, f"for (int c = thread; c < {tiling.columns}; c += {_THREADS}) {{", *indent([
            "const int o = first_column + c;", f"if (o >= {kernel.out_channels}) break;", *lines]), "}"]
        if self.of_entries:
            last = kernel.batch - 1
            fill = ["#pragma unroll 1", "for (int next = 0; next < 2; ++next) {", *indent([
                f"const int n = first_n + next < {last} ? first_n + next : {last};", *fill]), "}",
                    f"if (thread == 0) columns[{self._flags_at + 4 * scaled}] = __int_as_float(first_n);"]
        body = ["const int g = group;", *["bool fast = true;"] * scaled, *fill]
        if scaled:
            body += ["fast = __all_sync(0xffffffffu, fast);",
                     f"if (thread % 32 == 0) columns[{self._flags_at} + thread / 32] = fast;"]
        parameters = (*parameter_texts(kernel, emitter.used),
                      *[("const float* __restrict__", "right_scales")] * scaled)
        heads = [*map(" ".join, parameters), "float* columns", "int thread", "int group", "int first_column",
                 *["int first_n"] * self.of_entries]
        comment = "Fills the table of what the epilogue needs of a tile's columns."
        return device_function(comment, "void", f"{self.name}_columns", heads, body), parameters


def table_room(geometry: Geometry) -> int:
    """Floats that a table takes at most."""
    twice = _may_hold_entries(geometry) and _loads_of_entries(geometry.kernel)
    return (MOST_VALUES * geometry.tiling.columns + 4) * (1 + twice)


@lru_cache(maxsize=256)
def _loads_of_entries(kernel: Contraction) -> bool:
    """Whether a store loads what differs among entries of the batch."""
    return any(load.index.strides[0] for store in kernel.stores for load in loads_of([store.expression]))


def _may_hold_entries(geometry: Geometry) -> bool:
    """Whether the rows of a tile are of two entries of the batch at most, and a table may have values of both."""
    kernel, tiling = geometry.kernel, geometry.tiling
    return tiling.core == "wgmma" and bool(kernel.axes) and 1 < kernel.batch < 2**31 \
        and geometry.pitches[0] >= tiling.rows


def _of_columns(root: Expression, entries: bool) -> Iterator[Expression]:
    """The largest parts of an expression that depend on loads and on nothing but (g, o), or (n, g, o) where there may
    be values of ``entries``, outermost first."""
    def is_part(node: Expression) -> bool:
        moved = [a for a in range(_rank(node)) if varies(node, (a,))]
        return not is_whole(node) and not node.reduced and bool(_rank(node)) and \
            not any(a > 2 or (a == 0 and not entries) for a in moved)

    return filter(is_part, walk(root, into=lambda node: not is_part(node)))


def _rank(root: Expression) -> int:
    """Axes of what an expression loads; 0 where it loads nothing."""
    return max((len(load.index.strides) for load in loads_of([root])), default=0)
