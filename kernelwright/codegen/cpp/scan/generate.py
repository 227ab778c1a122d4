"""Scans as C++ with OpenMP.

Meaning, in PyTorch, over ``outer`` x ``length``::

    state = torch.cumsum(expression, -1)      (cumprod, cummax, ...; one position late where exclusive)
    out.flatten()[index over outer x length] = expression of state      for each store

Where the scanned axis is innermost, a thread takes rows: blocks of a row go through a buffer, in which eight runs
are scanned side by side (their additions do not wait for each other) and then shifted. A few long rows are cut
into parts, whose totals are taken first. Where another axis is innermost, it is the vector axis and carries one
state per column.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

from kernelwright.codegen.cpp.expressions import Scope, cost, literal
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
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.ops.scans import SCANS
from kernelwright.plan.expressions import Expression, Reduced
from kernelwright.plan.kernels import Scan

BLOCK = 1024
COLUMNS = 256
FEW_ROWS = 64
PART = 32 * BLOCK
NOTHING = {kind: nothing for kind, nothing, _ in SCANS.values()}
_STATE = Reduced(0)


def generate(kernel: Scan, name: str) -> KernelSource:
    """The C++ text of a scan as the host function ``name``. Raises KeyError for a kind that is not known."""
    _ = NOTHING[kernel.kind]
    comment = f"Running {kernel.kind}{' of what comes before' * kernel.exclusive} along {kernel.length} positions " \
              f"for each of {sizes_text(kernel.outer)}."
    if 0 in (*kernel.outer, kernel.length):
        return definition(kernel, name, comment, [])
    strides = kernel.stores[0].index.strides
    rows = not kernel.outer or abs(strides[-1]) <= abs(strides[-2]) or kernel.outer[-1] < 4
    body, workspace = _rows(kernel) if rows else (_columns(kernel), 0)
    return definition(kernel, name, comment, body, workspace)


def _names(kernel: Scan) -> list[str]:
    return [f"i{n}" for n in range(len(kernel.outer))] + ["p"]


def _roots(kernel: Scan) -> list:
    return [s.expression for s in kernel.stores]


def _work(kernel: Scan) -> float:
    return prod(kernel.outer) * kernel.length * (cost([kernel.expression, *_roots(kernel)]) / 8 + 2)


def _wide(kernel: Scan) -> str:
    """The type of states: sums and products of float in double, as PyTorch accumulates them on a CPU."""
    return "double" if kernel.kind in ("sum", "product") else "real"


def _load_block(kernel: Scan, scope: Scope) -> list[str]:
    lane = len(kernel.outer)

    def keep(inner: Scope) -> list[str]:
        return [f"values[p - first] = {inner.text(kernel.expression)};"]

    return lane_loop([kernel.expression], scope, _names(kernel), lane, "first", "last", keep)


def _rows(kernel: Scan) -> tuple[list[str], int]:
    names, lane, length = _names(kernel), len(kernel.outer), kernel.length
    rows, parts = prod(kernel.outer), 1
    serial = kernel.kind == "product"
    if not serial and rows < FEW_ROWS and length >= 2 * PART and _work(kernel) >= SERIAL_WORK:
        parts = min(ceil(length / PART), ceil(FEW_ROWS / rows))
    size = ceil(ceil(length / parts) / BLOCK) * BLOCK
    parts = ceil(length / size)
    wide, kind = _wide(kernel), kernel.kind
    nothing = literal(NOTHING[kind])
    operation = f"kw_scan_{kind}"
    scan = f"{'kw_scan_serial' if serial else 'kw_scan_block'}<{operation}>"
    where = decode("task" if parts == 1 else "row", kernel.outer, names[:lane])
    bounds = [f"const int64_t begin = part * {size}, end = begin + {size} < {length} ? begin + {size} : {length};"]
    if parts == 1:
        bounds = [f"const int64_t begin = 0, end = {length};"]

    def blocks(lines: list[str]) -> list[str]:
        return braces(f"for (int64_t first = begin; first < end; first += {BLOCK})",
                      [f"const int64_t last = first + {BLOCK} < end ? first + {BLOCK} : end;", *lines])

    scope = Scope("c")
    head = hoist([kernel.expression], scope, names, [lane])
    load = _load_block(kernel, scope)
    lines: list[str] = []
    workspace = 0
    if parts > 1:
        split = [f"const int64_t row = task / {parts}, part = task % {parts};"]
        workspace = rows * parts * 8
        total = [*split, *where, *bounds, *head, f"{wide} values[{BLOCK}];", f"{wide} total = {nothing};",
                 *blocks([*load, f"{scan}(values, last - first, total, false);"]),
                 "totals[task] = total;"]
        lines += [f"{wide}* totals = static_cast<{wide}*>(workspace);  // of every part of every row",
                  *parallel_for("task", rows * parts, total, _work(kernel))]
        where = [*split, *where]
    inner = scope.nested("s")
    late = hoist(_roots(kernel), inner, names, [lane], reduced_varies=True)
    inner.bound[_STATE] = "real(values[p - first])"
    write = lane_loop(_roots(kernel), inner, names, lane, "first", "last",
                      lambda s: store_lines(kernel.stores, kernel, s, names))
    before = []
    if parts > 1:
        before = [f"for (int64_t q = task - part; q < task; ++q) carry = {operation}::of(carry, totals[q]);"]
    exclusive = "true" if kernel.exclusive else "false"
    lines += parallel_for("task", rows * parts, [
        *where, *bounds, *head, *late, f"{wide} values[{BLOCK}];", f"{wide} carry = {nothing};", *before,
        *blocks([*load, f"{scan}(values, last - first, carry, {exclusive});", *write])],
        _work(kernel))
    return lines, workspace


def _columns(kernel: Scan) -> list[str]:
    names, lane = _names(kernel), len(kernel.outer) - 1
    count = kernel.outer[lane]
    columns = min(count, COLUMNS)
    blocks = ceil(count / columns)
    others = kernel.outer[:lane]
    wide, operation = _wide(kernel), f"kw_scan_{kernel.kind}"
    column = names[lane]
    lines = decode("task", (*others, blocks), [*names[:lane], "block"])
    if blocks == 1:
        lines = [*lines[:-1], f"const int64_t first = 0, last = {count};"]
    else:
        lines += [f"const int64_t first = block * {columns};",
                  f"const int64_t last = first + {columns} < {count} ? first + {columns} : {count};"]
    lines += [f"{wide} state[{columns}];",
              f"for (int64_t c = 0; c < {columns}; ++c) state[c] = {literal(NOTHING[kernel.kind])};"]
    scope = Scope("c")
    lines += hoist([kernel.expression, *_roots(kernel)], scope, names, [lane, lane + 1], reduced_varies=True)

    def update(inner: Scope) -> list[str]:
        place = f"state[{column} - first]"
        return [f"{place} = {operation}::of({place}, {wide}({inner.text(kernel.expression)}));"]

    def step(roots: list[Expression], finish: Callable[[Scope], list[str]]) -> list[str]:
        inner = scope.nested("s")
        head = hoist(roots, inner, names, [lane], reduced_varies=True)
        inner.bound[_STATE] = f"real(state[{column} - first])"
        return braces("", [*head, *lane_loop(roots, inner, names, lane, "first", "last", finish)])

    parts = [step([kernel.expression], update),
             step(_roots(kernel), lambda s: store_lines(kernel.stores, kernel, s, names))]
    if kernel.exclusive:
        parts.reverse()
    lines += braces(f"for (int64_t p = 0; p < {kernel.length}; ++p)", [x for part in parts for x in part])
    return parallel_for("task", prod(others) * blocks, lines, _work(kernel))
