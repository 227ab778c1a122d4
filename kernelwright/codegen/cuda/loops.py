"""The CUDA skeleton of :class:`LoopKernel`.

Meaning, in PyTorch, over the points of ``outer`` x ``row``::

    reduced = [reduce(kind, expression.flatten(row axes), -1) for each reduction, in order]
    out.flatten()[index over outer x row] = expression      for each row store
    out.flatten()[index over outer] = expression            for each outer store

:mod:`loops_schedule` chooses how threads lie over the points, :mod:`loops_device` writes the kernels
(:mod:`loops_tiles` those whose buffers are laid out in different orders),
:mod:`loops_walk` the loops along a row, :mod:`loops_emitter` the values and
:mod:`loops_accumulators` the reductions.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, prod

from kernelwright.codegen.cuda.expressions import C_TYPES, functions_used
from kernelwright.codegen.cuda.loops_accumulators import RESULT_NAMES
from kernelwright.codegen.cuda.loops_comment import describe
from kernelwright.codegen.cuda.loops_device import (
    Buffers,
    DeviceKernel,
    finish_kernel,
    points_kernel,
    reduction_kernel,
)
from kernelwright.codegen.cuda.loops_domain import (
    Pass,
    arranged,
    change_kernel,
    normalise,
    ordered,
    passes,
    shared_rows,
)
from kernelwright.codegen.cuda.loops_emitter import Buffer
from kernelwright.codegen.cuda.loops_forms import reading, taking_last, used_later
from kernelwright.codegen.cuda.loops_schedule import (
    COMPONENTS,
    MEMORY,
    Schedule,
    column_parts,
    fits,
    points,
    reductions,
    takes_columns,
)
from kernelwright.codegen.cuda.loops_tiles import TileSchedule, pointwise_walk, tiles_kernel
from kernelwright.codegen.cuda.loops_turned import turned_schedule
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS
from kernelwright.codegen.loop_parts import apart, generate_parts
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Constant, Expression, Index, Load, Reduced
from kernelwright.plan.kernels import LoopKernel

_OF_NOTHING = {"sum": 0.0, "max": -inf, "min": inf, "logsumexp": -inf, "moments": nan}


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
        schedule = turned_schedule(normal, _walks(normal)[1]) if parts is not None else None
        if parts is not None and schedule is None:
            return generate_parts(parts, name, kernel, generate, C_TYPES, stream=True)
    inputs = tuple(Buffer(f"in{n}", C_TYPES[d]) for n, d in enumerate(kernel.input_dtypes))
    outputs = tuple(Buffer(f"out{n}", C_TYPES[d]) for n, d in enumerate(kernel.output_dtypes))
    plan = _Plan(name, Buffers(inputs, outputs))
    if prod(kernel.outer):
        if kernel.reductions and not prod(kernel.row):
            kernel = _without_row(kernel)
        if kernel.reductions:
            plan.reduce(normalise(kernel), schedule)
        else:
            if kernel.row_stores and prod(kernel.row):
                plan.points(
                    replace(
                        kernel,
                        outer=kernel.outer + kernel.row,
                        row=(),
                        outer_stores=kernel.row_stores,
                        row_stores=(),
                    ),
                    schedule,
                )
            if kernel.outer_stores:
                plan.points(_only_outer(kernel), schedule)
    return plan.source(kernel)


def chosen_schedule(kernel: LoopKernel) -> Schedule | TileSchedule:
    """The schedule that ``generate`` takes for a kernel with reductions, or for its outer stores without."""
    if not kernel.reductions:
        return _pointwise(_only_outer(kernel))[1]
    kernel = normalise(kernel)
    walks, kept = _walks(kernel)
    return _within_shared(reductions(kernel, kept, walks), kernel)


def _walk_of_reduction(kernel: LoopKernel) -> tuple[int, ...]:
    """The order of the axes in which the threads of a reduction lie over its points, slowest first."""
    outer, row = ordered(kernel)
    normal = arranged(kernel, outer, row)
    return (*row, *outer) if reductions(normal, *_walks(normal)[::-1]).family == "columns" else (*outer, *row)


def _pointwise(kernel: LoopKernel) -> tuple[LoopKernel, Schedule | TileSchedule]:
    """A pointwise kernel in normal form and in the order of its walk, and its schedule."""
    kernel = normalise(kernel)
    walk_order = pointwise_walk(kernel)
    if walk_order.extents:
        return kernel, TileSchedule(walk_order)
    if walk_order.order != tuple(range(len(kernel.outer))):
        kernel = arranged(kernel, walk_order.order, ())
    return kernel, points(kernel)


def _walks(kernel: LoopKernel) -> tuple[int, list[Expression]]:
    """How often a kernel walks its rows, and the row values worth keeping between walks."""
    found = passes(kernel)
    trees = [
        [kernel.reductions[n].expression for n in w.reductions if n not in dict(w.exponential_sums)]
        for w in found
    ]
    if kernel.row_stores:
        trees.append([store.expression for store in kernel.row_stores])
    return len(trees), shared_rows(kernel, trees)


def _check(kernel: LoopKernel) -> None:
    for dtype in kernel.input_dtypes + kernel.output_dtypes:
        if dtype not in C_TYPES:
            raise ValueError(f"the CUDA loop skeleton has no dtype {dtype!r}")
    if kernel.compute not in ("float32", "float64"):
        raise ValueError(f"the CUDA loop skeleton computes in float32 or float64, not {kernel.compute!r}")
    for reduction in kernel.reductions:
        if reduction.kind not in RESULT_NAMES:
            raise ValueError(f"unknown reduction {reduction.kind!r}")


def _only_outer(kernel: LoopKernel) -> LoopKernel:
    """The outer stores alone, without row axes."""
    split = len(kernel.outer)

    def cut(index: Index) -> Index:
        return Index(index.strides[:split], index.offset)

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Load):
            return replace(
                node, index=cut(node.index), guards=tuple(replace(g, index=cut(g.index)) for g in node.guards)
            )
        return None

    return change_kernel(replace(kernel, row=(), row_stores=(), reductions=()), change, cut)


def _without_row(kernel: LoopKernel) -> LoopKernel:
    """Reductions over nothing are constants."""

    def change(node: Expression) -> Expression | None:
        return (
            Constant(_OF_NOTHING[kernel.reductions[node.reduction].kind])
            if isinstance(node, Reduced)
            else None
        )

    return replace(change_kernel(kernel, change), reductions=(), row_stores=())


class _Plan:
    """The device kernels of one loop kernel, and its workspace."""

    def __init__(self, name: str, buffers: Buffers) -> None:
        self.name = name
        self.buffers = buffers
        self.devices: list[DeviceKernel] = []
        self.workspace: list[tuple[Buffer, int]] = []
        self.bytes = 0

    def _next(self) -> str:
        return f"k{len(self.devices)}_{self.name}"

    def _reserve(self, name: str, c_type: str, count: int) -> Buffer:
        buffer = Buffer(name, c_type)
        self.workspace.append((buffer, self.bytes))
        self.bytes += -(-count * (4 if c_type == "float" else 8) // 256) * 256
        return buffer

    def points(
        self,
        kernel: LoopKernel,
        schedule: Schedule | TileSchedule | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        """Add a pointwise kernel."""
        kernel, chosen = _pointwise(kernel)
        schedule = schedule or chosen
        buffers = buffers or self.buffers
        comment = describe(kernel, buffers)
        make = tiles_kernel if isinstance(schedule, TileSchedule) else points_kernel
        self.devices.append(make(kernel, schedule, buffers, self._next(), comment))

    def reduce(self, kernel: LoopKernel, schedule: Schedule | None) -> None:
        """Add the kernels of a kernel with reductions, whose axes are normal."""
        walks = passes(kernel)
        count, kept = _walks(kernel)
        given, schedule = schedule, schedule or _within_shared(reductions(kernel, kept, count), kernel)
        plain = given is None and not schedule.keep and not schedule.window
        taken = plain and takes_columns(kernel, schedule.family)
        if schedule.splits == 1 and not taken:
            comment = describe(kernel, self.buffers)
            self.devices.append(
                reduction_kernel(kernel, walks, kept, schedule, self.buffers, self._next(), comment)
            )
        else:
            self._split(kernel, walks, schedule, taken)

    def _split(self, kernel: LoopKernel, walks: list[Pass], schedule: Schedule, taken: bool) -> None:
        """Several parts per row: for each pass their states, then the merge; row stores come last.

        ``taken``: neighbouring threads take the last row axis, whatever ``schedule`` says.
        """
        outer = prod(kernel.outer)
        if taken:
            schedule = column_parts(taking_last(kernel))
        parts = schedule.splits * (kernel.row[-1] if taken else 1)
        known: dict[tuple[int, int], int] = {}
        buffers = self.buffers
        for number, current in enumerate(walks):
            last = number == len(walks) - 1
            restricted = reading(kernel, known)
            width = sum(COMPONENTS[kernel.reductions[n].kind] for n in current.reductions)
            partial = self._reserve(f"partial{number}", "double", outer * parts * width)
            walked = taking_last(restricted) if taken else restricted
            comment = f"Part {number}: {parts} parts of every row.\n" + describe(
                walked, buffers, current.reductions
            )
            self.devices.append(
                reduction_kernel(
                    walked, [current], [], schedule, buffers, self._next(), comment, partial, int(taken)
                )
            )
            later = used_later(kernel, walks, number)
            results = {
                key: self._reserve(
                    f"{RESULT_NAMES[kernel.reductions[key[0]].kind][key[1]]}{key[0]}_of",
                    C_TYPES[kernel.compute],
                    outer,
                )
                for key in later
            }
            stores = restricted.outer_stores if last else ()
            self.devices.append(
                finish_kernel(
                    restricted,
                    current,
                    parts,
                    buffers,
                    partial,
                    results,
                    stores,
                    self._next(),
                    f"Merge of the parts{', and what is stored once per row' if stores else ''}.",
                )
            )
            for key, buffer in results.items():
                known[key] = len(buffers.inputs)
                buffers = Buffers((*buffers.inputs, buffer), buffers.outputs)
        if kernel.row_stores:
            final = reading(kernel, known)
            self.points(
                replace(
                    final,
                    outer=kernel.outer + kernel.row,
                    row=(),
                    reductions=(),
                    outer_stores=final.row_stores,
                    row_stores=(),
                ),
                None,
                buffers,
            )

    def source(self, kernel: LoopKernel) -> KernelSource:
        """The definition: device kernels, then the host function."""
        parameters = [f"const {b.c_type}* {b.name}" for b in self.buffers.inputs]
        parameters += [f"{b.c_type}* {b.name}" for b in self.buffers.outputs]
        lines = [
            f"static const char* {self.name}({', '.join([*parameters, 'void* workspace', 'cudaStream_t stream'])}) {{"
        ]
        vectors = {name for device in self.devices for name in device.vectors}
        names = [b.name for b in (*self.buffers.inputs, *self.buffers.outputs) if b.name in vectors]
        if names:
            together = " | ".join(f"reinterpret_cast<uintptr_t>({name})" for name in names)
            lines += [
                f"  if (({together}) % 16 != 0)",
                f'    return "{self.name}: {", ".join(names)} must be aligned to 16 bytes";',
            ]
        for buffer, offset in self.workspace:
            place = f"static_cast<char*>(workspace) + {offset}LL"
            lines.append(f"  {buffer.c_type}* {buffer.name} = reinterpret_cast<{buffer.c_type}*>({place});")
        if not self.workspace:
            lines.append("  (void)workspace;")
        if not self.devices:
            used = [b.name for b in (*self.buffers.inputs, *self.buffers.outputs)] + ["stream"]
            lines += [f"  (void){name};" for name in used]
        for device in self.devices:
            where = f'"{self.name}"'
            if device.shared_bytes > 48 * 1024:
                lines.append(
                    f"  KW_CHECK({where}, cudaFuncSetAttribute({device.name}, "
                    f"cudaFuncAttributeMaxDynamicSharedMemorySize, {device.shared_bytes}));"
                )
            lines.append(
                f"  KW_LAUNCH({where}, {device.name}, {device.grid}, {device.threads}, {device.shared_bytes}, stream, "
                f"{', '.join(device.arguments)});"
            )
        lines += ["  return nullptr;", "}", ""]
        definition = "\n".join([*(device.text for device in self.devices), "\n".join(lines)])
        called = functions_used(definition)
        support = {
            "kw_vector"
            if f in ("kw_read4", "kw_write4")
            else "kw_logsumexp"
            if f.startswith("kw_logsumexp")
            else f.removesuffix("_bits").removesuffix("_value")
            for f in called
        }
        return KernelSource(
            self.name, definition, self.bytes, ("check", *sorted(support & SCALAR_SNIPPETS.keys()))
        )


def _within_shared(schedule: Schedule, kernel: LoopKernel) -> Schedule:
    """The schedule, or one with fewer threads per column where that does not fit."""
    if fits(schedule, kernel):
        return schedule
    group = 8 if fits(replace(schedule, lanes=1, group=8, threads=256), kernel) else 1
    return replace(schedule, lanes=1, group=group, threads=256, unroll=8, keep="")
