"""The CUDA skeleton of :class:`LoopKernel`.

Meaning, in PyTorch, over the points of ``outer`` x ``row``::

    reduced = [reduce(kind, expression.flatten(row axes), -1) for each reduction, in order]
    out.flatten()[index over outer x row] = expression      for each row store
    out.flatten()[index over outer] = expression            for each outer store

:mod:`loops.schedule` says how threads may lie over the points, :mod:`loops.chosen` which way a kernel takes, and
:mod:`loops.launches` which device kernels it becomes. :mod:`loops.device` writes them
(:mod:`loops.tiles` those whose buffers are laid out in different orders),
:mod:`loops.walk` the loops along a row, :mod:`loops.emitter` the values and
:mod:`loops.accumulators` the reductions.
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.loops.accumulators import RESULT_NAMES
from kernelwright.codegen.cuda.loops.chosen import pointwise, reducing, walks
from kernelwright.codegen.cuda.loops.device import Buffers
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.forms import only_outer, only_row, without_row
from kernelwright.codegen.cuda.loops.launches import Launches
from kernelwright.codegen.cuda.loops.normal_form import arranged, normalise, ordered
from kernelwright.codegen.cuda.loops.schedule import MEMORY, Schedule
from kernelwright.codegen.cuda.loops.staged_columns import turned_schedule
from kernelwright.codegen.cuda.loops.tiles import TileSchedule
from kernelwright.codegen.loops.two_kernels import apart, generate_parts
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.kernels import LoopKernel


def generate(
    kernel: LoopKernel, name: str, schedule: Schedule | TileSchedule | None = None
) -> KernelSource:
    """The CUDA text of a loop kernel whose host function is ``name``.

    ``schedule`` replaces the chosen one (for tuning; it must fit the kernel). Input and output pointers
    must be aligned to 16 bytes where the kernel reads or writes four elements at once (every
    allocation of PyTorch is); the host function says so, and launches nothing, where one is not.
    Raises ValueError for an unknown reduction or dtype, and where a grid would exceed 2**31 - 1 blocks.
    """
    _check(kernel)
    if schedule is None and kernel.reductions and prod(kernel.outer) and prod(kernel.row):
        parts = apart(kernel, _walk_of_reduction(kernel), MEMORY)
        normal = normalise(kernel)
        schedule = turned_schedule(normal, walks(normal)[1]) if parts is not None else None
        if parts is not None and schedule is None:
            return generate_parts(parts, name, kernel, generate, C_TYPES, stream=True)
    inputs = tuple(Buffer(f"in{n}", C_TYPES[d]) for n, d in enumerate(kernel.input_dtypes))
    outputs = tuple(Buffer(f"out{n}", C_TYPES[d]) for n, d in enumerate(kernel.output_dtypes))
    launches = Launches(name, Buffers(inputs, outputs), kernel.backwards)
    if prod(kernel.outer):
        if kernel.reductions and not prod(kernel.row):
            kernel = without_row(kernel)
        if kernel.reductions:
            assert not isinstance(schedule, TileSchedule)  # which is of points
            launches.reduce(normalise(kernel), schedule)
        else:
            if kernel.row_stores and prod(kernel.row):
                launches.points(only_row(kernel), schedule)
            if kernel.outer_stores:
                launches.points(only_outer(kernel), schedule)
    return launches.source(kernel)


def chosen_schedule(kernel: LoopKernel) -> Schedule | TileSchedule:
    """The schedule that ``generate`` takes for a kernel with reductions, or for its outer stores without."""
    return reducing(normalise(kernel)) if kernel.reductions else pointwise(only_outer(kernel))[1]


def _walk_of_reduction(kernel: LoopKernel) -> tuple[int, ...]:
    """The order of the axes in which the threads of a reduction lie over its points, slowest first."""
    outer, row = ordered(kernel)
    normal = arranged(kernel, outer, row)
    return (*row, *outer) if reducing(normal).family == "columns" else (*outer, *row)


def _check(kernel: LoopKernel) -> None:
    for dtype in kernel.input_dtypes + kernel.output_dtypes:
        if dtype not in C_TYPES:
            raise ValueError(f"the CUDA loop skeleton has no dtype {dtype!r}")
    if kernel.compute not in ("float32", "float64"):
        raise ValueError(f"the CUDA loop skeleton computes in float32 or float64, not {kernel.compute!r}")
    for reduction in kernel.reductions:
        if reduction.kind not in RESULT_NAMES:
            raise ValueError(f"unknown reduction {reduction.kind!r}")
