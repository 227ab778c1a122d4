"""Column kernels whose rows lie along memory: a block reads its rows in that order into shared memory first.

For a softmax over channels that come last in memory, stored channels first: the threads of a block lie along the
rows while they read, and along the outer points while they reduce and store. Every element is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.codegen.cuda.loops.emitter import Emitter
from kernelwright.codegen.cuda.loops.normal_form import loads
from kernelwright.codegen.cuda.loops.schedule import MEMORY, SHARED_BYTES, Schedule, fits, lanes_along
from kernelwright.codegen.cuda.loops.site import Site, indent, loops
from kernelwright.codegen.cuda.loops.walk import axis_lines
from kernelwright.codegen.loops.order import WASTEFUL, Access, waste
from kernelwright.codegen.loops.two_kernels import lying_across
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.expressions import Expression, Load, walk
from kernelwright.plan.kernels import LoopKernel

COLUMNS = 32
"""Outer points of a block."""


def turned_schedule(kernel: LoopKernel, kept: Sequence[Expression]) -> Schedule | None:
    """The schedule of a kernel in normal form that keeps ``kept`` in shared memory, or None where that is no use.

    Everything that lies across its columns must be in the kept values, and in order along the rows.
    """
    outer, count = len(kernel.outer), prod(kernel.row)
    sizes = kernel.outer + kernel.row
    if not kept or not outer or kernel.outer[-1] < COLUMNS:
        return None
    if len(kept) * count * (COLUMNS + 1) * ITEM_BYTES[kernel.compute] > SHARED_BYTES:
        return None
    by_columns = (*range(outer, len(sizes)), *range(outer))
    inside = {node for value in kept for node in walk(value) if isinstance(node, Load)}
    across = lying_across(kernel, by_columns, MEMORY)
    if not across or not set(across) <= inside:
        return None
    for load in inside & set(loads(kernel)):
        access = Access(load.index.strides, ITEM_BYTES[kernel.input_dtypes[load.buffer]])
        if waste(access, range(len(sizes)), sizes, MEMORY) >= WASTEFUL:
            return None
    for store in kernel.row_stores:
        access = Access(store.index.strides, ITEM_BYTES[kernel.output_dtypes[store.buffer]], True)
        if waste(access, by_columns, sizes, MEMORY) >= WASTEFUL:
            return None
    group = 4 if count <= 64 else 8 if count <= 256 else 16
    unroll = min(-(-count // group), 8)
    schedule = Schedule(
        "columns", group=group, threads=group * COLUMNS, unroll=unroll, keep="shared", turned=True
    )
    return schedule if fits(schedule, kernel) else None


def fill_lines(
    kernel: LoopKernel, site: Site, emitter: Emitter, schedule: Schedule, pitch: int
) -> list[str]:
    """Put the kept values of a block's rows into shared memory; rows of it are ``pitch`` elements apart."""
    outer, count = prod(kernel.outer), prod(kernel.row)
    axes = len(kernel.outer) + len(kernel.row)
    lanes = lanes_along(kernel, axes - 1)
    lane_axis = axes - 1 if lanes > 1 else None
    own = Site(kernel.outer, kernel.row, site.real, site.long, tuple(range(axes)), lane_axis, lanes)
    columns = schedule.threads // schedule.group
    vectors = count // lanes
    steps = -(-columns * vectors // schedule.threads)
    unroll = min(steps, max(1, 16 // (lanes * len(emitter.kept))))
    filler = Emitter(own, emitter.buffers)
    filler.start_walk("[u]" if unroll > 1 else "")
    for node, kept in emitter.kept.items():
        moved = f" + v * {pitch}" if lanes > 1 else ""
        filler.lane_lines.append(f"{kept.name}[p * {pitch}u + row{moved}] = {filler.value(node)};")
    arrays = [
        f"{s.c_type} {s.name}{f'[{unroll}]' if unroll > 1 else ''}{f'[{s.count}]' if s.place else ''};"
        for s in filler.row_loads
    ]
    reads = [line for stored in filler.row_loads for line in stored.lines]
    work = [*filler.row_lines, *loops(own, filler.lane_lines), *filler.late_lines]
    step = "k" if unroll == 1 else "(k + u)"
    split = len(kernel.outer)
    wide = "unsigned long long" if outer + columns >= 2**32 else "unsigned"

    def at_step(body: Sequence[str]) -> list[str]:
        lines = [
            f"const unsigned place = {step} * {schedule.threads}u + threadIdx.x, row = place / {vectors}u;",
            f"const unsigned p = place % {vectors}u{f' * {lanes}u' if lanes > 1 else ''};",
            f"const {wide} o = blockIdx.x * ({wide}){columns} + row;",
        ]
        limits = [f"row < {columns}u"] if -(-steps // unroll) * unroll * schedule.threads != columns * vectors else []
        limits += [f"o < {outer}u"] if outer % columns else []
        lines += axis_lines(own.names[:split], kernel.outer, "o", "long" in wide, body)
        lines += axis_lines(own.names[split:], kernel.row, "p", False, body)
        body = [f"if ({' && '.join(limits)}) {{", *indent(body), "}"] if limits else list(body)
        lines += body
        if unroll > 1:
            return ["#pragma unroll", f"for (unsigned u = 0; u < {unroll}; ++u) {{", *indent(lines), "}"]
        return lines

    body = [*arrays, *at_step(reads), *at_step(work)] if unroll > 1 else at_step([*arrays, *reads, *work])
    emitter.used |= filler.used
    emitter.vectors |= filler.vectors
    for kept in emitter.kept.values():
        kept.ready = True
    return [
        "// The block's rows, in the order of their memory.",
        *filler.fixed_lines,
        f"for (unsigned k = 0; k < {steps}; k += {unroll}) {{",
        *indent(body),
        "}",
        "__syncthreads();",
    ]
