"""A recurrence without products: every element goes through all steps by itself.

A thread has a block of elements along the last axis, whose states stay in its registers and nearest cache from the
first step to the last one.
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cpp.expressions import Scope, cost, index_text
from kernelwright.codegen.cpp.loops.text import braces, decode, definition, hoist, lane_loop, parallel_for, sizes_text
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Expression, Reduced
from kernelwright.plan.kernels import Recurrence, Store

#: Elements of a block, at most and at least; where there are few tasks, blocks are shorter.
_COLUMNS, _FEWEST, _TASKS = 256, 32, 64


def generate(kernel: Recurrence, name: str) -> KernelSource:
    """The C++ text of a recurrence without weights as the host function ``name``."""
    *outer, count = kernel.shape
    axes = [f"i{n}" for n in range(len(outer))]
    names, lane = ["t", *axes, "u"], len(kernel.shape)
    tasks = ceil(prod(kernel.shape) / _TASKS)
    columns = min(count, _COLUMNS, max(_FEWEST, ceil(tasks / 16) * 16))
    blocks = ceil(count / columns)
    states = {s: f"state{s}" for s in range(len(kernel.updates))}
    last = [s for s in kernel.stores if not s.index.strides[0] and s.expression in kernel.updates]
    each = [s for s in kernel.stores if s not in last]
    roots = [*kernel.updates, *(s.expression for s in each)]

    lines = decode("task", (*outer, blocks), [*axes, "block"])
    if blocks == 1:
        lines = [*lines[:-1], f"const int64_t first = 0, last = {count};"]
    else:
        lines += [f"const int64_t first = block * {columns};",
                  f"const int64_t last = first + {columns} < {count} ? first + {columns} : {count};"]
    lines += [f"real {', '.join(f'{state}[{columns}]' for state in states.values())};"]
    at = {s: f"{state}[u - first]" for s, state in states.items()}
    begin = Scope("b")
    head = hoist(kernel.initial, begin, names, [lane])
    lines += braces("", [*head, *lane_loop(
        kernel.initial, begin, names, lane, "first", "last",
        lambda scope: [f"{at[s]} = {scope.text(e)};" for s, e in enumerate(kernel.initial)])])

    def finish(scope: Scope) -> list[str]:
        after = [f"const real after{s} = {scope.text(e)};" for s, e in enumerate(kernel.updates)]
        return [*(_stored(s, scope.text(s.expression), names) for s in each), *after,
                *(f"{place} = after{s};" for s, place in at.items())]

    scope = Scope("c")
    lines += hoist(roots, scope, names, [lane, 0], reduced_varies=True)
    inner = scope.nested("s")
    head = hoist(roots, inner, names, [lane], reduced_varies=True)
    bound: dict[Expression, str] = {Reduced(0, s): place for s, place in at.items()}
    inner.bound.update(bound)
    step = [*head, *lane_loop(roots, inner, names, lane, "first", "last", finish)]
    lines += braces(f"for (int64_t t = 0; t < {kernel.steps}; ++t)", step)
    if last:
        lines += braces("for (int64_t u = first; u < last; ++u)",
                        [_stored(s, at[kernel.updates.index(s.expression)], names) for s in last])
    work = prod(kernel.shape) * kernel.steps * (cost(roots) / 8 + 2)
    comment = f"{kernel.steps} steps for each of {sizes_text(kernel.shape)}."
    return definition(kernel, name, comment, parallel_for("task", prod(outer) * blocks, lines, work))


def _stored(store: Store, value: str, names: list[str]) -> str:
    return f"out{store.buffer}[{index_text(store.index, names)}] = {value};"
