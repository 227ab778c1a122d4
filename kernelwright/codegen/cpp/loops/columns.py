"""Column kernels: the innermost outer axis is the vector axis; the row is walked with it inside.

A task owns a block of columns (and a chunk of the rows, where there are few blocks). It takes the
rows 128 at a time: partial results in arrays of ``real`` that vector loops update, then joined to
the accumulators of ``cpp.support.rows``, one per column. With at most 128 rows the partial results
are the results. Moments are relative to the first row of each 128 or to the mean so far.
"""

from __future__ import annotations

from math import ceil

from kernelwright.codegen.cpp.expressions import Scope, cost
from kernelwright.codegen.cpp.loops.columns_arrays import ROWS, ColumnArrays
from kernelwright.codegen.cpp.loops.text import (
    braces,
    decode,
    definition,
    hoist,
    lane_loop,
    parallel_for,
    sizes_text,
    store_lines,
)
from kernelwright.codegen.loops.normal_form import expressions
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import plus
from kernelwright.plan.expressions import Expression, Load
from kernelwright.plan.kernels import LoopKernel


class _Columns(ColumnArrays):
    """The text of a whole column kernel."""

    def stores(self, scope: Scope, first: str, last: str, row: bool, outer: bool) -> list[str]:
        """The walk of the row stores and the stores once per column."""
        kernel, lines = self.kernel, []
        if kernel.row_stores and row:
            roots = [store.expression for store in kernel.row_stores]
            once = scope.nested("f")
            lines += self.once_per_column(roots, once)
            lines += self._named_columns(roots, once, first, last)
        if kernel.outer_stores and outer:
            roots = [store.expression for store in kernel.outer_stores]
            inner = scope.nested("t")
            lines += hoist(roots, inner, self.names, [self.lane], True)
            lines += lane_loop(
                roots,
                inner,
                self.names,
                self.lane,
                "left",
                "right",
                lambda at: store_lines(kernel.outer_stores, kernel, at, self.names),
                prefix="u",
                kernel=kernel,
            )
        return lines

    def _named_columns(self, roots: list[Expression], scope: Scope, first: str, last: str) -> list[str]:
        return self.walk(
            roots,
            scope.nested("s"),
            first,
            last,
            lambda at: store_lines(self.kernel.row_stores, self.kernel, at, self.names),
        )

    def start(self, tasks: int) -> str:
        """The definition of the number of a task's first column. tasks: of each point."""
        return f"const int64_t start = {f'task / {tasks} * {self.width}' if self.points > 1 else '0'};"

    def work(self) -> float:
        """Multiply-adds of the kernel, roughly."""
        return self.points * self.width * self.rows * (cost(expressions(self.kernel)) / 8 + 1)

    def whole(self) -> list[str]:
        """One task per block of columns."""
        scope = Scope("c")
        joined = self.rows > ROWS
        lines = decode("task", (*self.others, self.blocks), [*self.names[: self.lane], "block"])
        if self.blocks == 1:
            lines.pop()
        lines += [*self.span(), *self.turn(scope)]
        for numbers in self.passes:
            lines += self.reduce(numbers, scope, "0", str(self.rows), joined)
            lines += self.values(numbers, scope, joined)
        lines += self.stores(scope, "0", str(self.rows), True, True)
        return parallel_for("task", self.points * self.blocks, lines, self.work())

    def cut(self) -> tuple[list[str], int]:
        """Tasks are blocks of columns and chunks of rows; returns the body and the workspace in bytes."""
        kernel = self.kernel
        chunks = min(ceil(self.rows / ROWS), max(2, 64 // (self.points * self.blocks)))
        per_chunk = ceil(ceil(self.rows / chunks) / ROWS) * ROWS
        chunks = ceil(self.rows / per_chunk)
        columns = self.points * self.width
        real_bytes = 4 if kernel.compute == "float32" else 8
        table = -(-columns * len(self.nodes) * real_bytes // 256) * 256
        lane = self.names[self.lane]
        lines = [
            "// Results of every column, one component after another; behind them those of the chunks.",
            "real* const results = static_cast<real*>(workspace);",
        ]
        head = decode(
            "task", (*self.others, self.blocks, chunks), [*self.names[: self.lane], "block", "chunk"]
        )
        if self.blocks == 1:
            head = [line for line in head if "int64_t block" not in line]
        head += [
            *self.span(),
            f"const int64_t first = chunk * {per_chunk};",
            f"const int64_t last = first + {per_chunk} < {self.rows} ? first + {per_chunk} : {self.rows};",
        ]
        head.append(f"{self.start(self.blocks * chunks)}  // its first column's number")

        def load(done: list[list[int]]) -> Scope:
            scope = Scope("c")
            finished = {number for numbers in done for number in numbers}
            for place, (node, _, _) in enumerate(self.nodes):
                if node.reduction in finished:
                    scope.bound[node] = f"results[{plus(place * columns, 'start', lane)}]"
            return scope

        largest = 0
        for number, numbers in enumerate(self.passes):
            largest = max(largest, 32 * len(numbers))
            fields = " ".join(f"kw_{kernel.reductions[n].kind}_of<real> total{n};" for n in numbers)
            body = [*head, *self.reduce(numbers, load(self.passes[:number]), "first", "last", True)]
            totals = ", ".join(f"total{n}[{self.column}]" for n in numbers)
            body += self.each_column(
                [f"partial[(start + {lane}) * {chunks} + chunk] = {{{totals}}};"], simd=False
            )
            merge = [f"Partial whole = partial[column * {chunks}];"]
            merge += braces(
                f"for (int64_t chunk = 1; chunk < {chunks}; ++chunk)",
                [f"whole.total{n}.merge(partial[column * {chunks} + chunk].total{n});" for n in numbers],
            )
            merge += [
                f"results[{plus(place * columns, 'column')}] = whole.total{node.reduction}.{method}();"
                for place, (node, _, method) in enumerate(self.nodes)
                if node.reduction in numbers
            ]
            lines += braces(
                "",
                [
                    f"struct Partial {{ {fields} }};",
                    "Partial* const partial ="
                    f" reinterpret_cast<Partial*>(static_cast<char*>(workspace) + {table});",
                    *parallel_for("task", self.points * self.blocks * chunks, body, self.work()),
                    *parallel_for("column", columns, merge, columns * chunks * 8),
                ],
            )
        scope = load(self.passes)
        if kernel.row_stores:
            lines += parallel_for(
                "task",
                self.points * self.blocks * chunks,
                head + self.stores(scope, "first", "last", True, False),
                self.work(),
            )
        if kernel.outer_stores:
            once = decode("task", (*self.others, self.blocks), [*self.names[: self.lane], "block"])
            if self.blocks == 1:
                once.pop()
            once += [*self.span(), self.start(self.blocks)]
            lines += parallel_for(
                "task", self.points * self.blocks, once + self.stores(scope, "0", "0", False, True), columns
            )
        return lines, table + largest * columns * chunks


def generate_columns(kernel: LoopKernel, name: str, turned: tuple[Load, ...] = ()) -> KernelSource:
    """The text of a kernel in normal form whose vector axis is its last outer axis.

    ``turned``: loads of the kernel's own type, without guards, that are contiguous along its only row axis.
    """
    columns = _Columns(kernel, turned)
    kinds = ", ".join(reduction.kind for reduction in kernel.reductions) or "no reduction"
    comment = f"Columns: rows of {sizes_text(kernel.row)} for each of {sizes_text(kernel.outer)}: {kinds}."
    if columns.split:
        body, workspace = columns.cut()
        return definition(kernel, name, comment, body, workspace)
    return definition(kernel, name, comment, columns.whole())
