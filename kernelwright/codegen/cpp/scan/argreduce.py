"""The first place of a maximum or minimum, and its value, as C++ with OpenMP.

Meaning, in PyTorch, over ``outer`` x ``length``::

    extremum, place = expression.max(-1)      (min)

Along a row the extremum of a block is taken by vectors, and its place looked for only where the block improves on
what was before. Where another axis is innermost, it is the vector axis and keeps value and place per column.
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cpp.expressions import Scope, cost
from kernelwright.codegen.cpp.loops.text import (
    SERIAL_WORK,
    braces,
    decode,
    definition,
    hoist,
    lane_loop,
    parallel_for,
    sizes_text,
    store_lines,
)
from kernelwright.codegen.cpp.scan.generate import BLOCK, COLUMNS, FEW_ROWS, PART
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Load, Reduced, walk
from kernelwright.plan.kernels import Extremum

_BEST, _PLACE = Reduced(0, 0), Reduced(0, 1)


def generate(kernel: Extremum, name: str) -> KernelSource:
    """The C++ text of an extremum with its place, as the host function ``name``.

    Raises ValueError for a kind that is not known, and where the axis is empty and outer points are not.
    """
    if kernel.kind not in ("max", "min") or (kernel.length == 0 and prod(kernel.outer)):
        raise ValueError(f"no {kernel.kind} of {kernel.length} elements")
    comment = f"Place of the {kernel.kind} along {kernel.length} positions for each of {sizes_text(kernel.outer)}."
    if 0 in kernel.outer:
        return definition(kernel, name, comment, [])
    loads = [n.index for n in walk(kernel.expression) if isinstance(n, Load)]
    strides = max((i.strides for i in loads), key=lambda s: sum(map(bool, s)), default=kernel.stores[0].index.strides)
    if not kernel.outer or abs(strides[-1]) <= abs(strides[-2]) or kernel.outer[-1] < 4 or kernel.length >= 2**31:
        body, workspace = _rows(kernel)
    else:
        body, workspace = _columns(kernel), 0
    return definition(kernel, name, comment, body, workspace)


def _names(kernel: Extremum) -> list[str]:
    return [f"i{n}" for n in range(len(kernel.outer))] + ["p"]


def _work(kernel: Extremum) -> float:
    return prod(kernel.outer) * kernel.length * (cost([kernel.expression]) / 8 + 1)


def _stores(kernel: Extremum, scope: Scope, best: str, place: str) -> list[str]:
    """What is written once per outer point."""
    names, inner = _names(kernel), scope.nested("t")
    inner.bound |= {_BEST: best, _PLACE: place}
    return [*hoist([s.expression for s in kernel.stores], inner, names, []),
            *store_lines(kernel.stores, kernel, inner, names)]


def _rows(kernel: Extremum) -> tuple[list[str], int]:
    names, lane, length = _names(kernel), len(kernel.outer), kernel.length
    rows, parts = prod(kernel.outer), 1
    if rows < FEW_ROWS and length >= 2 * PART and _work(kernel) >= SERIAL_WORK:
        parts = min(ceil(length / PART), ceil(FEW_ROWS / rows))
    size = ceil(ceil(length / parts) / BLOCK) * BLOCK
    parts = ceil(length / size)
    scope = Scope("c")
    sign = "-" if kernel.kind == "max" else ""
    start = [f"real best = {sign}real(INFINITY);", "int64_t place = 0;"]
    take = f"kw_take_{kernel.kind}(best, place, "
    bounds = [f"const int64_t begin = 0, end = {length};"] if parts == 1 else \
        [f"const int64_t begin = part * {size}, end = begin + {size} < {length} ? begin + {size} : {length};",
         "place = begin;"]
    head = hoist([kernel.expression], scope, names, [lane])
    load = lane_loop([kernel.expression], scope, names, lane, "first", "last",
                     lambda inner: [f"values[p - first] = {inner.text(kernel.expression)};"])
    blocks = braces(f"for (int64_t first = begin; first < end; first += {BLOCK})",
                    [f"const int64_t last = first + {BLOCK} < end ? first + {BLOCK} : end;", *load,
                     f"kw_{kernel.kind}_of<real> block;", "block.block(values, last - first);",
                     "if (kw_improves_" + kernel.kind + "(best, block.best))",
                     "  best = block.best, place = first + kw_place_of(values, last - first, best);"])
    if parts == 1:
        lines = [*decode("row", kernel.outer, names[:lane]), *start, *bounds, *head,
                 f"alignas(64) real values[{BLOCK}];", *blocks, *_stores(kernel, scope, "best", "place")]
        return parallel_for("row", rows, lines, _work(kernel)), 0
    split = [f"const int64_t row = task / {parts}, part = task % {parts};", *decode("row", kernel.outer, names[:lane])]
    walked = parallel_for("task", rows * parts, [*split, *start, *bounds, *head, f"alignas(64) real values[{BLOCK}];",
                                                 *blocks, "bests[task] = best, places[task] = place;"], _work(kernel))
    merged = [*decode("row", kernel.outer, names[:lane]), *start, f"place = places[row * {parts}];",
              f"for (int64_t q = row * {parts}; q < (row + 1) * {parts}; ++q) {take}real(bests[q]), places[q]);",
              *_stores(kernel, Scope("m"), "best", "place")]
    return ["double* bests = static_cast<double*>(workspace);  // of every part of every row",
            f"int64_t* places = reinterpret_cast<int64_t*>(bests + {rows * parts});", *walked,
            *parallel_for("row", rows, merged, rows * parts)], rows * parts * 16


def _columns(kernel: Extremum) -> list[str]:
    names, lane = _names(kernel), len(kernel.outer) - 1
    count, column = kernel.outer[-1], _names(kernel)[len(kernel.outer) - 1]
    columns = min(count, COLUMNS)
    blocks = ceil(count / columns)
    others = kernel.outer[:lane]
    lines = decode("task", (*others, blocks), [*names[:lane], "block"])
    if blocks == 1:
        lines = [*lines[:-1], f"const int64_t first = 0, last = {count};"]
    else:
        lines += [f"const int64_t first = block * {columns};",
                  f"const int64_t last = first + {columns} < {count} ? first + {columns} : {count};"]
    sign = "-" if kernel.kind == "max" else ""
    lines += [f"alignas(64) real best[{columns}];", f"alignas(64) int32_t place[{columns}] = {{}};",
              f"for (int64_t c = 0; c < {columns}; ++c) best[c] = {sign}real(INFINITY);"]
    scope = Scope("c")
    lines += hoist([kernel.expression], scope, names, [lane, lane + 1])
    inner = scope.nested("s")
    head = hoist([kernel.expression], inner, names, [lane])
    here = f"{column} - first"

    def update(at: Scope) -> list[str]:
        value = at.text(kernel.expression)
        return [f"const bool better = kw_improves_{kernel.kind}(best[{here}], {value});",
                f"best[{here}] = kw_select(better, {value}, best[{here}]);",
                f"place[{here}] = kw_choose(better, int32_t(p), place[{here}]);"]

    lines += braces(f"for (int64_t p = 0; p < {kernel.length}; ++p)",
                    [*head, *lane_loop([kernel.expression], inner, names, lane, "first", "last", update)])
    lines += braces(f"for (int64_t {column} = first; {column} < last; ++{column})",
                    _stores(kernel, scope, f"best[{here}]", f"int64_t(place[{here}])"))
    return parallel_for("task", prod(others) * blocks, lines, _work(kernel))
