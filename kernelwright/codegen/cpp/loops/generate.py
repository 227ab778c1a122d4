"""Loop kernels as C++ with OpenMP: the choice of a schedule by the kernel's shape.

Pointwise kernels and those with a short row (pooling windows; the row is written out) go to
``cpp.loops.points``, or to ``cpp.loops.tiles`` where their buffers are laid out in different orders. Other
kernels run vector instructions along the axis where that moves least: the innermost row axis
(``cpp.loops.rows``) or the innermost outer axis (``cpp.loops.columns``).
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cpp.expressions import TYPES, cost
from kernelwright.codegen.cpp.loops.columns import generate_columns
from kernelwright.codegen.cpp.loops.columns_arrays import TURNED_ELEMENTS
from kernelwright.codegen.cpp.loops.places import near_places
from kernelwright.codegen.cpp.loops.points import generate_points
from kernelwright.codegen.cpp.loops.rows import generate_rows
from kernelwright.codegen.cpp.loops.text import definition, sizes_text
from kernelwright.codegen.cpp.loops.tiles import MEMORY, generate_tiles, pointwise_walk
from kernelwright.codegen.loops.normal_form import expressions, in_order, normalise, rounded_once, without_rows
from kernelwright.codegen.loops.two_kernels import apart, generate_parts, lying_across
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Load, walk
from kernelwright.plan.kernels import LoopKernel

VECTOR = 8
WRITTEN_OUT = 32
"""Longest row that is written out."""
WRITTEN_OUT_COST = 600


def generate(kernel: LoopKernel, name: str) -> KernelSource:
    """The C++ text of ``kernel`` as the host function ``name``.

    Raises ValueError for a reduction or KeyError for a function or dtype that is not known.
    """
    kernel = near_places(rounded_once(kernel))
    if 0 in kernel.outer:
        return definition(kernel, name, f"Nothing to do over {sizes_text(kernel.outer)}.", [])
    if 0 in kernel.row:
        return generate_points(normalise(without_rows(kernel)), name)
    kernel = normalise(kernel)
    if not kernel.row:
        if kernel.reductions or kernel.row_stores:
            return _pointwise(normalise(without_rows(kernel)), name)
        return _pointwise(kernel, name)
    if _window(kernel):
        kinds = ", ".join(reduction.kind for reduction in kernel.reductions)
        comment = f"Windows of {sizes_text(kernel.row)} for each of {sizes_text(kernel.outer)}: {kinds}."
        return generate_points(without_rows(kernel), name, comment)
    rows = not kernel.outer or _lane_cost(kernel, -1) + VECTOR / prod(kernel.row) <= _lane_cost(
        kernel, len(kernel.outer) - 1
    )
    outer, row = range(len(kernel.outer)), range(len(kernel.outer), len(kernel.outer + kernel.row))
    by_columns = (*outer[:-1], *row, *outer[-1:])
    parts = apart(kernel, (*outer, *row), MEMORY)
    if parts is not None or not rows:
        across = lying_across(kernel, by_columns, MEMORY)
        if across and kernel.outer and _can_turn(kernel, across):
            return generate_columns(kernel, name, across)
        if parts is not None and (rows or across):
            return generate_parts(parts, name, kernel, generate, TYPES, stream=False)
        parts = apart(kernel, by_columns, MEMORY)
        if parts is not None:
            return generate_parts(parts, name, kernel, generate, TYPES, stream=False)
    return generate_rows(kernel, name) if rows else generate_columns(kernel, name)


def _can_turn(kernel: LoopKernel, loads: tuple[Load, ...]) -> bool:
    """Whether a column kernel can turn loads into local arrays: short contiguous rows of its own type."""
    split = len(kernel.outer)
    if len(kernel.row) != 1 or kernel.row[0] * len(loads) > TURNED_ELEMENTS // VECTOR:
        return False
    return all(
        not load.guards
        and kernel.input_dtypes[load.buffer] == kernel.compute
        and load.index.strides[split] == 1
        and load.index.strides[split - 1] > 0
        for load in loads
    )


def _pointwise(kernel: LoopKernel, name: str) -> KernelSource:
    """A kernel in normal form without row axes, in the order that its memory asks for."""
    walk_order = pointwise_walk(kernel)
    if walk_order.extents:
        return generate_tiles(kernel, walk_order, name)
    return generate_points(in_order(kernel, walk_order.order), name)


def _lane_cost(kernel: LoopKernel, axis: int) -> float:
    """Cost of one element when ``axis`` is the vector axis, in loads of a vector's share."""
    length = (kernel.outer + kernel.row)[axis]
    used = [node.index for node in walk(*expressions(kernel)) if isinstance(node, Load)]
    used += [store.index for store in kernel.row_stores]
    total = 0.25 * sum(_stride_cost(index.strides[axis]) for index in dict.fromkeys(used)) + 0.25
    return total * VECTOR * ceil(length / VECTOR) / length


def _stride_cost(stride: int) -> float:
    if abs(stride) <= 1:
        return 1.0 if stride else 0.25
    return float(min(8, abs(stride)))


def _window(kernel: LoopKernel) -> bool:
    """Whether to write the row out: short rows over an outer axis that can be the vector axis."""
    if not kernel.outer:
        return False
    points = prod(kernel.row)
    if points > WRITTEN_OUT or points * cost(expressions(kernel)) > WRITTEN_OUT_COST:
        return False
    if kernel.outer[-1] < 4:
        return False
    strides = [
        node.index.strides[len(kernel.outer) - 1]
        for node in walk(*expressions(kernel))
        if isinstance(node, Load)
    ]
    return all(abs(stride) <= 4 for stride in strides)
