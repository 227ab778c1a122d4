"""Row kernels: the innermost row axis is the vector axis; one task per outer point or part of a row.

A pass walks the row in segments of at most 1024 elements: the vector loop writes the expression's
values into a buffer, and the accumulators of ``cpp.support.rows`` absorb it. Segments of short inner
rows (windows of a picture) go into one buffer, as many as it has room for: an accumulator's ends cost
more than they do. Values that later walks need again stay in a buffer of the row's length where it is
short. Few, long rows are cut into chunks of a size that depends on the shape only; their partial
results are merged in order, so the result does not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from kernelwright.codegen.cpp.expressions import Scope, cost, index_text
from kernelwright.codegen.cpp.loops.text import (
    axis_names,
    braces,
    decode,
    definition,
    hoist,
    lane_loop,
    parallel_for,
    sizes_text,
    store_lines,
)
from kernelwright.codegen.loops.normal_form import expressions, passes
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import plus, times
from kernelwright.plan.expressions import Apply, Expression, Load, Reduced, varies, walk
from kernelwright.plan.kernels import LoopKernel, Store

SEGMENT = 1024
KEPT_NEAR = 16384
"""Longest row whose values stay in buffers of its length for later walks, whatever else there is."""
KEPT_ELEMENTS = 65536
"""Most elements of such buffers in all: they have room in a core's second cache."""
CHUNK = 16384
DEAR = 8
"""Cost from which a value is written and read again rather than computed again."""

COMPONENTS = {
    "sum": ("value",),
    "product": ("value",),
    "max": ("value",),
    "min": ("value",),
    "logsumexp": ("value",),
    "moments": ("mean", "variance", "deviation"),
}


def reduced_nodes(kernel: LoopKernel) -> list[tuple[Reduced, str, str]]:
    """Every result that a kernel uses: its node, its name and the accumulator's method."""
    used = {node for root in expressions(kernel) for node in walk(root) if isinstance(node, Reduced)}
    return [
        (Reduced(n, c), f"reduced{n}" + (f"_{method}" if len(COMPONENTS[r.kind]) > 1 else ""), method)
        for n, r in enumerate(kernel.reductions)
        for c, method in enumerate(COMPONENTS[r.kind])
        if Reduced(n, c) in used
    ]


@dataclass
class _Rows:
    kernel: LoopKernel

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.names = axis_names(kernel)
        self.lane = len(kernel.outer) + len(kernel.row) - 1
        self.length = kernel.row[-1]
        self.blocks = ceil(self.length / SEGMENT)
        self.segments = prod(kernel.row[:-1]) * self.blocks
        self.together = min(SEGMENT // self.length, self.segments) if self.blocks == 1 else 1  # segments of a buffer
        self.row_axes = range(len(kernel.outer), self.lane + 1)
        self.passes = passes(kernel.reductions)
        self.points = prod(kernel.outer)
        self.elements = prod(kernel.row)
        self.split = (
            self.points < 64
            and self.elements >= 2 * CHUNK
            and self.points * self.elements >= 8 * CHUNK
            and self.segments >= 4
        )
        self.kept = self._kept()  # with the names of their buffers
        far = self.split or self.elements > KEPT_NEAR
        # The row store in whose place the only one of these stays. Of a short row, too: stores into memory that is not
        # near take no time beside the operations that a dear value takes.
        self.kept_in = self._place_of_result() if far or len(self.kept) == 1 else None
        if self.kept_in is not None:
            self.kept = {self._dearest(self.kept_in): f"out{self.kept_in.buffer}"}
        elif self.split or (far and len(self.kept) * self.elements > KEPT_ELEMENTS):
            self.kept = {}

    def _place_of_result(self) -> Store | None:
        """The row store in whose place a dear value can stay until it is stored: the only one, so that no other reads
        the value after it, of the kernel's own type and contiguous along the row."""
        kernel = self.kernel
        if len(kernel.row_stores) != 1 or self.together > 1:
            return None
        store = kernel.row_stores[0]
        fits = kernel.output_dtypes[store.buffer] == kernel.compute and store.index.strides[self.lane] == 1
        return store if fits and self._dearest(store) is not None else None

    def _dearest(self, store: Store) -> Expression | None:
        """Of what is reduced, the dearest value of which a store's is made; None where none is dear."""
        made_of = set(walk(store.expression))
        found = [value for value in self.kept if value in made_of and cost([value]) >= DEAR]
        return max(found, key=lambda value: cost([value]), default=None)

    def _kept(self) -> dict[Expression, str]:
        """Reduced expressions that later walks contain, with the names of their buffers; not those that are one value
        all along a segment, which stand outside of its loop."""
        result: dict[Expression, str] = {}
        for walk_number, numbers in enumerate(self.passes):
            later = [self.kernel.reductions[n].expression for p in self.passes[walk_number + 1 :] for n in p]
            later += [store.expression for store in self.kernel.row_stores]
            used = {node for root in later for node in walk(root)}
            for number in numbers:
                expression = self.kernel.reductions[number].expression
                if isinstance(expression, Apply) and varies(expression, [self.lane]) and expression in used and (
                        expression not in result):
                    result[expression] = f"row{len(result)}"
        return result

    def segment_loop(self, first: str, last: str, lines: list[str]) -> list[str]:
        """Walk the segments [first, last) of a row; ``lines`` see r0, ... and [begin, end)."""
        head = decode(
            "segment",
            (*self.kernel.row[:-1], self.blocks),
            [*self.names[self.row_axes[0] : self.lane], "block"],
        )
        if self.blocks == 1:
            head.pop()
            head.append(f"constexpr int64_t begin = 0, end = {self.length};")
        else:
            head += [
                f"const int64_t begin = block * {SEGMENT};",
                f"const int64_t end = begin + {SEGMENT} < {self.length} ? begin + {SEGMENT} : {self.length};",
            ]
        if self.segments == 1:
            return braces("", head + lines)
        return braces(f"for (int64_t segment = {first}; segment < {last}; ++segment)", head + lines)

    def buffer_loop(self, first: str, last: str, lines: list[str]) -> list[str]:
        """Walk the segments [first, last) of a row by as many as a buffer takes; ``lines`` see [from, to)."""
        if (first, last) == ("0", str(self.together)):
            return braces("", [f"constexpr int64_t from = 0, to = {last};", *lines])
        to = f"const int64_t to = from + {self.together} < {last} ? from + {self.together} : {last};"
        return braces(f"for (int64_t from = {first}; from < {last}; from += {self.together})", [to, *lines])

    def kept_at(self, variable: str) -> str:
        """The place of kept values at lane position ``variable``, from the start of their buffers."""
        if self.kept_in is not None:
            return index_text(self.kept_in.index, [*self.names[: self.lane], variable])
        return self.place(variable)

    def place(self, variable: str) -> str:
        """The position in a kept row of lane position ``variable``."""
        inner = [
            f"{prod(self.kernel.row[n + 1 :])} * {self.names[axis]}"
            for n, axis in enumerate(self.row_axes[:-1])
        ]
        return " + ".join([*inner, variable])

    def direct(self, expression: Expression) -> str | None:
        """A pointer to the values of a segment, where memory already holds them."""
        kernel = self.kernel
        if (
            isinstance(expression, Load)
            and self.together == 1
            and not expression.guards
            and expression.index.strides[self.lane] == 1
            and kernel.input_dtypes[expression.buffer] == kernel.compute
        ):
            names = [*self.names[: self.lane], "begin"]
            return f"in{expression.buffer} + {index_text(expression.index, names)}"
        return None

    def reduce(self, numbers: list[int], scope: Scope, first: str, last: str) -> list[str]:
        """Declare and fill the accumulators of one pass."""
        kernel, lane = self.kernel, self.names[self.lane]
        roots = list(dict.fromkeys(kernel.reductions[n].expression for n in numbers))
        buffers, computed, lines = {}, [], []
        for root in roots:
            pointer = self.direct(root)
            place = self.kept_at("begin") if self.together == 1 else f"{self.length} * from"
            if root in self.kept_now:
                buffers[root] = f"{self.kept[root]} + {place}"
            elif pointer is not None:
                buffers[root] = pointer
            else:
                computed.append(root)
                if root in self.kept:
                    buffers[root] = f"{self.kept[root]} + {place}"
                else:
                    owner = next(n for n in numbers if kernel.reductions[n].expression == root)
                    buffers[root] = f"values{owner}"
                    lines.append(f"alignas(64) real values{owner}[{self.together * min(SEGMENT, self.length)}];")
        for number in numbers:
            lines.append(f"kw_{kernel.reductions[number].kind}_of<real> accumulator{number};")
        lines += hoist(computed, scope, self.names, self.row_axes)
        inner = self.with_kept(scope.nested("w"))
        body = hoist(computed, inner, self.names, [self.lane])

        at_lane = f"{lane} - begin" if self.together == 1 else f"{self.length} * (segment - from) + {lane}"

        def finish(at: Scope) -> list[str]:
            result = []
            for root in computed:
                target = (
                    f"{self.kept[root]}[{self.kept_at(lane)}]"
                    if root in self.kept
                    else f"{buffers[root]}[{at_lane}]"
                )
                result.append(f"{target} = {at.text(root)};")
            return result

        if computed:
            body += lane_loop(
                computed, inner, self.names, self.lane, "begin", "end", finish, kernel=self.kernel
            )
        count = "end - begin" if self.together == 1 else f"{self.length} * (to - from)"
        blocks = [f"accumulator{n}.block({buffers[kernel.reductions[n].expression]}, {count});" for n in numbers]
        if self.together == 1:
            lines += self.segment_loop(first, last, body + blocks)
        else:
            lines += self.buffer_loop(first, last, (self.segment_loop("from", "to", body) if body else []) + blocks)
        self.kept_now.update(root for root in computed if root in self.kept)
        return lines

    def with_kept(self, scope: Scope) -> Scope:
        """Name the kept values inside a segment loop."""
        for root in self.kept_now:
            scope.bound[root] = f"{self.kept[root]}[{self.kept_at(self.names[self.lane])}]"
        return scope

    def store_rows(self, scope: Scope, first: str, last: str) -> list[str]:
        """The walk of the row stores."""
        stores = self.kernel.row_stores
        if not stores:
            return []
        roots = [store.expression for store in stores]
        lines = hoist(roots, scope, self.names, self.row_axes)
        inner = self.with_kept(scope.nested("w"))
        body = hoist([r for r in roots if r not in inner.bound], inner, self.names, [self.lane])
        body += lane_loop(
            roots,
            inner,
            self.names,
            self.lane,
            "begin",
            "end",
            lambda at: store_lines(stores, self.kernel, at, self.names),
            kernel=self.kernel,
        )
        return lines + self.segment_loop(first, last, body)

    def store_outer(self, scope: Scope) -> list[str]:
        """The stores of one outer point."""
        roots = [store.expression for store in self.kernel.outer_stores]
        return hoist(roots, scope, self.names, []) + store_lines(
            self.kernel.outer_stores, self.kernel, scope, self.names
        )

    def whole(self) -> list[str]:
        """One task per outer point."""
        self.kept_now: set[Expression] = set()
        scope = Scope("c")
        outer = decode("point", self.kernel.outer, self.names[: len(self.kernel.outer)])
        own = () if self.kept_in is not None else self.kept.values()
        lines = [f"alignas(64) real {buffer}[{self.elements}];" for buffer in own]
        for number, numbers in enumerate(self.passes):
            scope.prefix = f"c{number}_"
            lines += self.reduce(numbers, scope, "0", str(self.segments))
            lines += self.bind_values(numbers, scope)
        scope.prefix = "s"
        lines += self.store_rows(scope, "0", str(self.segments))
        scope.prefix = "t"
        lines += self.store_outer(scope)
        return parallel_for("point", self.points, outer + lines, self.work())

    def work(self) -> float:
        """Multiply-adds of the kernel, roughly."""
        return self.points * self.elements * (cost(expressions(self.kernel)) / 8 + 1)

    def bind_values(self, numbers: list[int], scope: Scope) -> list[str]:
        """Name the results of a pass."""
        lines = []
        for node, name, method in reduced_nodes(self.kernel):
            if node.reduction in numbers:
                lines.append(f"const real {name} = accumulator{node.reduction}.{method}();")
                scope.bound[node] = name
        return lines

    def cut(self) -> tuple[list[str], int]:
        """Tasks are chunks of rows; returns the body and the workspace in bytes."""
        self.kept_now = set()
        kernel, outer_names = self.kernel, self.names[: len(self.kernel.outer)]
        per_chunk = max(1, CHUNK * self.segments // self.elements, ceil(self.segments / 256))
        chunks = ceil(self.segments / per_chunk)
        nodes = reduced_nodes(kernel)
        real_bytes = 4 if kernel.compute == "float32" else 8
        table = -(-self.points * len(nodes) * real_bytes // 256) * 256
        lines = (
            [
                f"// Chunk results, then merged in order into results[point * {len(nodes)} + component].",
                "real* const results = static_cast<real*>(workspace);",
            ]
            if nodes
            else []
        )
        span = [
            f"const int64_t first = chunk * {per_chunk};",
            f"const int64_t last = first + {per_chunk} < {self.segments} "
            f"? first + {per_chunk} : {self.segments};",
        ]
        head = [*decode("task", (self.points, chunks), ["point", "chunk"]), *span]
        largest = 0
        for walk_number, numbers in enumerate(self.passes):
            scope = Scope("c")
            load = self._load_results(nodes, self.passes[:walk_number], scope)
            fields = " ".join(f"kw_{kernel.reductions[n].kind}_of<real> accumulator{n};" for n in numbers)
            struct = f"Partial{walk_number}"
            largest = max(largest, 32 * len(numbers))
            body = [
                *head,
                *decode("point", kernel.outer, outer_names),
                *load,
                *self.reduce(numbers, scope, "first", "last"),
                f"partial[task] = {{{', '.join(f'accumulator{n}' for n in numbers)}}};",
            ]
            merge = [f"{struct} whole = partial[point * {chunks}];"]
            merge += braces(
                f"for (int64_t chunk = 1; chunk < {chunks}; ++chunk)",
                [
                    f"whole.accumulator{n}.merge(partial[point * {chunks} + chunk].accumulator{n});"
                    for n in numbers
                ],
            )
            for place, (node, _, method) in enumerate(nodes):
                if node.reduction in numbers:
                    merge.append(
                        f"results[{plus(times('point', len(nodes)), place)}] = "
                        f"whole.accumulator{node.reduction}.{method}();"
                    )
            lines += braces(
                "",
                [
                    f"struct {struct} {{ {fields} }};",
                    f"{struct}* const partial = "
                    f"reinterpret_cast<{struct}*>(static_cast<char*>(workspace) + {table});",
                    *parallel_for("task", self.points * chunks, body, self.work()),
                    *braces(f"for (int64_t point = 0; point < {self.points}; ++point)", merge),
                ],
            )
        if kernel.row_stores:
            scope = Scope("c")
            load = self._load_results(nodes, self.passes, scope)
            body = [
                *head,
                *decode("point", kernel.outer, outer_names),
                *load,
                *self.store_rows(scope, "first", "last"),
            ]
            lines += parallel_for("task", self.points * chunks, body, self.work())
        if kernel.outer_stores:
            scope = Scope("c")
            load = self._load_results(nodes, self.passes, scope)
            body = [*decode("point", kernel.outer, outer_names), *load, *self.store_outer(scope)]
            lines += braces(f"for (int64_t point = 0; point < {self.points}; ++point)", body)
        return lines, table + largest * self.points * chunks

    def _load_results(self, nodes: list[tuple[Reduced, str, str]], done: list[list[int]], scope: Scope) -> list[str]:
        finished = {number for numbers in done for number in numbers}
        lines = []
        for place, (node, name, _) in enumerate(nodes):
            if node.reduction in finished:
                lines.append(f"const real {name} = results[{plus(times('point', len(nodes)), place)}];")
                scope.bound[node] = name
        return lines


def generate_rows(kernel: LoopKernel, name: str) -> KernelSource:
    """The text of a kernel in normal form whose vector axis is its last row axis."""
    rows = _Rows(kernel)
    kinds = ", ".join(reduction.kind for reduction in kernel.reductions) or "no reduction"
    comment = f"Rows of {sizes_text(kernel.row)} for each of {sizes_text(kernel.outer)}: {kinds}."
    if rows.split:
        body, workspace = rows.cut()
        return definition(kernel, name, comment, body, workspace)
    return definition(kernel, name, comment, rows.whole())
