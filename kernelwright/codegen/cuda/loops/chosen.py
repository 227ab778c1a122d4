"""The schedule that a loop kernel in normal form gets."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.codegen.cuda.loops.normal_form import arranged, normalise, passes, shared_rows
from kernelwright.codegen.cuda.loops.schedule import Schedule, fits, points, points_in_rows, reductions
from kernelwright.codegen.cuda.loops.tiles import TileSchedule, pointwise_walk
from kernelwright.plan.expressions import Expression
from kernelwright.plan.kernels import LoopKernel


def pointwise(kernel: LoopKernel) -> tuple[LoopKernel, Schedule | TileSchedule]:
    """A pointwise kernel in normal form and in the order of its walk, and its schedule.

    Of the family "rows" where threads stay on rows of the last axis (`loops_forms.along_row`).
    """
    kernel = normalise(kernel)
    walk_order = pointwise_walk(kernel)
    if walk_order.extents:
        return kernel, TileSchedule(walk_order)
    if walk_order.order != tuple(range(len(kernel.outer))):
        kernel = arranged(kernel, walk_order.order, ())
    return kernel, points_in_rows(kernel) or points(kernel)


def walks(kernel: LoopKernel) -> tuple[int, list[Expression]]:
    """How often a kernel walks its rows, and the row values worth keeping between walks."""
    found = passes(kernel)
    trees = [
        [kernel.reductions[n].expression for n in w.reductions if n not in dict(w.exponential_sums)]
        for w in found
    ]
    if kernel.row_stores:
        trees.append([store.expression for store in kernel.row_stores])
    return len(trees), shared_rows(kernel, trees)


def reducing(kernel: LoopKernel) -> Schedule:
    """The schedule of a kernel with reductions; one with fewer threads per column where the best does not fit."""
    count, kept = walks(kernel)
    schedule = reductions(kernel, kept, count)
    if fits(schedule, kernel):
        return schedule
    group = 8 if fits(replace(schedule, lanes=1, group=8, threads=256), kernel) else 1
    return replace(schedule, lanes=1, group=group, threads=256, unroll=8, keep="")
