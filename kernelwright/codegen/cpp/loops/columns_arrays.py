"""Reductions of column kernels: arrays with one entry per column, updated row by row by vector loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, prod

from kernelwright.codegen.cpp.expressions import Scope, cost, index_text
from kernelwright.codegen.cpp.loops.rows import reduced_nodes
from kernelwright.codegen.cpp.loops.text import (
    axis_names,
    braces,
    decode,
    hoist,
    lane_loop,
    nested,
    once_along_lane,
    same_elsewhere,
)
from kernelwright.codegen.loops.normal_form import passes, shifted
from kernelwright.codegen.terms import grouped, minus
from kernelwright.plan.expressions import Expression, Index, Load, may_sum_to_minus_zero, walk
from kernelwright.plan.kernels import LoopKernel

ROWS = 128
WIDEST = 512
CACHE_ELEMENTS = 65536
TURNED_ELEMENTS = 16384
"""Elements of the local arrays of turned loads."""

# The arrays of one reduction by their type. Products are in double, as are sums of moments, which PyTorch takes so.
_ARRAYS = {
    "sum": {"real": ("part",)},
    "product": {"double": ("product",)},
    "max": {"real": ("best",)},
    "min": {"real": ("best",)},
    "logsumexp": {"real": ("best", "part")},
    "moments": {"real": ("shift",), "double": ("part", "square")},
}
_NEUTRAL = {"sum": 0.0, "product": 1.0, "max": -inf, "min": inf, "logsumexp": -inf}


@dataclass
class ColumnArrays:
    """The geometry of a column kernel and the text of its reductions in arrays of one entry per column.

    ``turned``: loads whose memory runs along the row; a task turns its part of them into a local array first.
    """

    kernel: LoopKernel
    turned: tuple[Load, ...] = ()

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.names = axis_names(kernel)
        self.lane = len(kernel.outer) - 1
        self.width = kernel.outer[-1]
        self.others = kernel.outer[:-1]
        self.points = prod(self.others)
        self.rows = prod(kernel.row)
        self.row_axes = range(len(kernel.outer), len(self.names))
        self.passes = passes(kernel.reductions)
        self.nodes = reduced_nodes(kernel)
        self.split = (
            self.points * ceil(self.width / WIDEST) < 16
            and self.rows >= 4 * ROWS
            and self.points * self.width * self.rows >= 1 << 18
        )
        walks = (
            len(self.passes) + bool(kernel.row_stores) + any(r.kind == "logsumexp" for r in kernel.reductions)
        )
        limit = WIDEST
        if self.turned:
            self.split = False
            limit = max(16, min(WIDEST, TURNED_ELEMENTS // (self.rows * len(self.turned)) // 16 * 16))
        elif walks > 1 and not self.split:
            limit = max(32, min(WIDEST, CACHE_ELEMENTS // self.rows))
        blocks = ceil(self.width / limit)
        self.block = min(self.width, ceil(ceil(self.width / blocks) / 16) * 16)
        self.blocks = ceil(self.width / self.block)
        self.column = f"{self.names[self.lane]} - left"
        self.once = 0  # arrays of values that every row of a column needs

    def turn(self, scope: Scope) -> list[str]:
        """Turn the loads that lie across, whole rows of the task's columns, and name their elements."""
        lines, row = [], len(self.kernel.outer)
        pitch = -(-self.block // 8) * 8 + 8
        for number, load in enumerate(self.turned):
            strides = load.index.strides
            start = Index((*strides[: self.lane], 0, 0), load.index.offset)
            left = "left" if strides[self.lane] == 1 else f"left * {strides[self.lane]}"
            lines += [
                f"alignas(64) real turned{number}[{self.rows * pitch}];",
                f"kw_turn(in{load.buffer} + {index_text(start, self.names)} + {left}, {strides[self.lane]}, "
                f"turned{number}, {pitch}, right - left, {self.rows});",
            ]
            for place in range(4):
                at = self.names[row] if place == 0 else f"({self.names[row]} + {place})"
                scope.bound[shifted(load, row, place)] = f"turned{number}[{at} * {pitch} + {self.column}]"
        return lines

    def span(self) -> list[str]:
        """Definitions of the columns [left, right) of a task."""
        if self.blocks == 1:
            return [f"constexpr int64_t left = 0, right = {self.width};"]
        return [
            f"const int64_t left = block * {self.block};",
            f"const int64_t right = left + {self.block} < {self.width} ? left + {self.block} : {self.width};",
        ]

    def each_column(self, lines: list[str], simd: bool = True) -> list[str]:
        """A loop over the task's columns."""
        variable = self.names[self.lane]
        loop = braces(f"for (int64_t {variable} = left; {variable} < right; ++{variable})", lines)
        return (["#pragma omp simd"] if simd else []) + loop

    def row_loop(self, first: str, last: str, lines: list[str], step: int = 1) -> list[str]:
        """Walk the rows [first, last), ``step`` at a time; ``lines`` see r0, ..."""
        head = decode("row", self.kernel.row, [self.names[axis] for axis in self.row_axes])
        return braces(f"for (int64_t row = {first}; row + {step} <= {last}; row += {step})", head + lines)

    def once_per_column(self, roots: list[Expression], scope: Scope) -> list[str]:
        """Arrays of what is dear in ``roots`` and the same in every row, and their names."""
        found = {node: f"fixed{number}" for number, node in
                 enumerate(same_elsewhere(roots, scope, self.lane, self.row_axes), self.once)}
        self.once += len(found)
        return once_along_lane(found, self.block, self.column, scope, self.names, self.lane, "left", "right")

    def walk(
        self,
        roots: list[Expression],
        scope: Scope,
        first: str,
        last: str,
        finish: Callable[[Scope], list[str]],
        skip: bool = False,
        step: int = 1,
    ) -> list[str]:
        """Evaluate ``roots`` at every ``step``-th row and every column."""
        outside = hoist(roots, scope, self.names, [self.lane, *self.row_axes], True)
        inner = scope.nested("w")
        lines = hoist(roots, inner, self.names, [self.lane], True)
        lines += lane_loop(
            roots, inner, self.names, self.lane, "left", "right", finish, skip_outside=skip, kernel=self.kernel
        )
        loop = self.row_loop(first, last, lines, step)
        return braces("", [*outside, *loop]) if outside else loop  # another walk gives the same names

    def reduce(self, numbers: list[int], scope: Scope, first: str, last: str, joined: bool) -> list[str]:
        """Reduce rows [first, last) into arrays, or where ``joined`` into ``total{n}`` accumulators."""
        kernel, j = self.kernel, self.column
        size = self.block
        lines = self.once_per_column([kernel.reductions[n].expression for n in numbers], scope)
        for n in numbers:
            for c_type, arrays in _ARRAYS[kernel.reductions[n].kind].items():
                lines.append(f"alignas(64) {c_type} {', '.join(f'{a}{n}[{size}]' for a in arrays)};")
            if joined:
                lines.append(f"kw_{kernel.reductions[n].kind}_of<real> total{n}[{size}];")
        body = self._start(numbers, scope, joined)
        begin, end = ("from", "to") if joined else (first, last)

        def update(copies: list[list[Expression]]):
            return lambda at: [
                line
                for n, own in zip(numbers, copies, strict=True)
                for line in self._update(n, [at.text(copy) for copy in own])
            ]

        roots = [kernel.reductions[n].expression for n in numbers]
        fours = self._takes_four(roots, scope, int(last) - int(first) if last.isdigit() else ROWS)
        if fours:
            four = [[shifted(root, self.row_axes[0], place) for place in range(4)] for root in roots]
            flat = [copy for own in four for copy in own]
            body += self.walk(flat, scope.nested("q"), begin, end, update(four), step=4)
        rest = f"{end} - {grouped(minus(end, begin))} % 4" if fours else begin
        body += self.walk(
            roots,
            scope.nested("a"),
            rest,
            end,
            update([[root] for root in roots]),
            self._ignores_outside(numbers),
        )
        exponentials = [n for n in numbers if kernel.reductions[n].kind == "logsumexp"]
        if exponentials:
            body += self.walk(
                [kernel.reductions[n].expression for n in exponentials],
                scope.nested("e"),
                begin,
                end,
                lambda at: [
                    f"part{n}[{j}] += "
                    f"kw_exp({at.text(kernel.reductions[n].expression)} - kw_origin(best{n}[{j}]));"
                    for n in exponentials
                ],
            )
        if not joined:
            return lines + body
        body += self.each_column([self._join(n) for n in numbers], simd=False)
        head = [f"const int64_t to = from + {ROWS} < {last} ? from + {ROWS} : {last};"]
        return lines + braces(f"for (int64_t from = {first}; from < {last}; from += {ROWS})", head + body)

    def _takes_four(self, roots: list[Expression], scope: Scope, rows: int) -> bool:
        """Whether to take four rows at once, so that cheap updates load and store their arrays less often."""
        guarded = any(isinstance(node, Load) and node.guards for root in roots for node in walk(root))
        return len(self.kernel.row) == 1 and rows >= 16 and not guarded and cost(roots, scope.bound) <= 8

    def _update(self, n: int, values: list[str]) -> list[str]:
        """Add values of one column to the arrays of reduction ``n``."""
        j = self.column
        match self.kernel.reductions[n].kind:
            case "sum":
                return [f"part{n}[{j}] += {nested('({} + {})', values)};"]
            case "product":
                return [f"product{n}[{j}] *= {nested('({} * {})', [f'double({v})' for v in values])};"]
            case "max" | "logsumexp":  # of equal zeros the first is kept, as PyTorch does
                return [f"best{n}[{j}] = kw_maximum({nested('kw_maximum({}, {})', values[::-1])}, best{n}[{j}]);"]
            case "min":
                return [f"best{n}[{j}] = kw_minimum({nested('kw_minimum({}, {})', values[::-1])}, best{n}[{j}]);"]
        gaps = [f"d{n}_{place}" for place in range(len(values))]
        squares = nested("({} + {})", [f"{gap} * {gap}" for gap in gaps])
        return [
            *(f"const double {gap} = double({v}) - double(shift{n}[{j}]);"
              for gap, v in zip(gaps, values, strict=True)),
            f"part{n}[{j}] += {nested('({} + {})', gaps)};",
            f"square{n}[{j}] += {squares};",
        ]

    def _start(self, numbers: list[int], scope: Scope, joined: bool) -> list[str]:
        """Give the arrays their first values."""
        j, kernel = self.column, self.kernel
        lines = []
        shifted = [n for n in numbers if kernel.reductions[n].kind == "moments"]
        plain = []
        for n in numbers:
            for array in (a for arrays in _ARRAYS[kernel.reductions[n].kind].values() for a in arrays):
                if array == "best":
                    sign = "" if kernel.reductions[n].kind == "min" else "-"
                    plain.append(f"best{n}[{j}] = {sign}real(INFINITY);")
                elif array != "shift":
                    plain.append(f"{array}{n}[{j}] = {int(array == 'product')};")
        if plain:
            lines += self.each_column(plain)
        if shifted:
            first = self.walk(
                [kernel.reductions[n].expression for n in shifted],
                scope.nested("b"),
                "from" if joined else "0",
                "from + 1" if joined else "1",
                lambda at: [
                    f"shift{n}[{j}] = kw_origin({at.text(kernel.reductions[n].expression)});" for n in shifted
                ],
            )
            if joined:
                mean = [f"shift{n}[{j}] = kw_origin(total{n}[{j}].mean());" for n in shifted]
                lines += [
                    *braces(f"if (total{shifted[0]}[0].count == 0)", first),
                    *braces("else", self.each_column(mean, simd=False)),
                ]
            else:
                lines += first
        return lines

    def _join(self, n: int) -> str:
        """Add the arrays' results of rows [from, to) to the accumulator of a column."""
        j = self.column
        match self.kernel.reductions[n].kind:
            case "sum":
                return f"total{n}[{j}].total += part{n}[{j}];"
            case "product":
                return f"total{n}[{j}].total *= product{n}[{j}];"
            case "max" | "min":
                return f"total{n}[{j}].merge({{best{n}[{j}]}});"
            case "logsumexp":
                return f"total{n}[{j}].merge({{{{best{n}[{j}]}}, part{n}[{j}]}});"
        return (
            f"total{n}[{j}].join(double(to - from), double(to - from) * shift{n}[{j}] + part{n}[{j}], "
            f"square{n}[{j}] - part{n}[{j}] * part{n}[{j}] / double(to - from));"
        )

    def _ignores_outside(self, numbers: list[int]) -> bool:
        """Whether elements whose guards fail change no result."""
        loads = set()
        for n in numbers:
            reduction = self.kernel.reductions[n]
            if not isinstance(reduction.expression, Load) or not reduction.expression.guards:
                return False
            if _NEUTRAL.get(reduction.kind) != reduction.expression.otherwise:
                return False
            loads.add(reduction.expression.guards)
        return len(loads) == 1

    def values(self, numbers: list[int], scope: Scope, joined: bool) -> list[str]:
        """Arrays ``reduced...`` of a pass's results, and their names."""
        j, kernel, lines, body = self.column, self.kernel, [], []
        for node, name, method in self.nodes:
            n = node.reduction
            if n not in numbers:
                continue
            lines.append(f"alignas(64) real {name}[{self.block}];")
            text = {
                "sum": f"part{n}[{j}]" + " + real(0)" * may_sum_to_minus_zero(kernel.reductions[n].expression),
                "product": f"real(product{n}[{j}])",
                "max": f"best{n}[{j}]",
                "min": f"best{n}[{j}]",
                "logsumexp": f"kw_origin(best{n}[{j}]) + kw_log(part{n}[{j}])",
                "moments": {
                    "mean": f"real(double(shift{n}[{j}]) + part{n}[{j}] / {self.rows})",
                    "variance": f"real(kw_spread(part{n}[{j}], square{n}[{j}], {self.rows}))",
                    "deviation": f"real(std::sqrt(kw_spread(part{n}[{j}], square{n}[{j}], {self.rows})))",
                }.get(method, ""),
            }[kernel.reductions[n].kind]
            body.append(f"{name}[{j}] = {f'total{n}[{j}].{method}()' if joined else text};")
            scope.bound[node] = f"{name}[{j}]"
        return lines + self.each_column(body, simd=not joined)
