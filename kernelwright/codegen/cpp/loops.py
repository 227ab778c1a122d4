"""Loop kernels as C++ with OpenMP: the choice of a schedule by the kernel's shape.

Pointwise kernels and those with a short row (pooling windows; the row is written out) go to
``loops_points``. Other kernels run vector instructions along the axis where that moves least:
the innermost row axis (``loops_rows``) or the innermost outer axis (``loops_columns``).
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cpp.expressions import cost
from kernelwright.codegen.cpp.loops_columns import generate_columns
from kernelwright.codegen.cpp.loops_normal import expressions, normalise, without_rows
from kernelwright.codegen.cpp.loops_points import generate_points
from kernelwright.codegen.cpp.loops_rows import generate_rows
from kernelwright.codegen.cpp.loops_text import definition, sizes_text
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
    if 0 in kernel.outer:
        return definition(kernel, name, f"Nothing to do over {sizes_text(kernel.outer)}.", [])
    if 0 in kernel.row:
        return generate_points(normalise(without_rows(kernel)), name)
    kernel = normalise(kernel)
    if not kernel.row:
        if kernel.reductions or kernel.row_stores:
            return generate_points(without_rows(kernel), name)
        return generate_points(kernel, name)
    if _window(kernel):
        kinds = ", ".join(reduction.kind for reduction in kernel.reductions)
        comment = f"Windows of {sizes_text(kernel.row)} for each of {sizes_text(kernel.outer)}: {kinds}."
        return generate_points(without_rows(kernel), name, comment)
    if not kernel.outer or _lane_cost(kernel, -1) + VECTOR / prod(kernel.row) <= _lane_cost(
        kernel, len(kernel.outer) - 1
    ):
        return generate_rows(kernel, name)
    return generate_columns(kernel, name)


def _lane_cost(kernel: LoopKernel, axis: int) -> float:
    """Cost of one element when ``axis`` is the vector axis, in loads of a vector's share."""
    length = (kernel.outer + kernel.row)[axis]
    used = [node.index for root in expressions(kernel) for node in walk(root) if isinstance(node, Load)]
    used += [store.index for store in kernel.row_stores]
    total = 0.25 * sum(_stride_cost(index.strides[axis]) for index in dict.fromkeys(used)) + 0.25
    return total * VECTOR * ceil(length / VECTOR) / length


def _stride_cost(stride: int) -> float:
    if abs(stride) <= 1:
        return 1.0 if stride else 0.25
    return 2.0 if abs(stride) == 2 else 8.0


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
        for root in expressions(kernel)
        for node in walk(root)
        if isinstance(node, Load)
    ]
    return all(abs(stride) <= 4 for stride in strides)
