"""Pointwise kernels: vector loops over the innermost axis, threads over blocks of the rest."""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cpp.expressions import Scope, cost
from kernelwright.codegen.cpp.loops.text import (
    axis_names,
    decode,
    definition,
    hoist,
    lane_loop,
    once_along_lane,
    parallel_for,
    same_elsewhere,
    sizes_text,
    store_lines,
)
from kernelwright.codegen.loops.normal_form import indices
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.kernels import LoopKernel

BLOCK = 8192
TRANSPOSED_BLOCK = 128
LONGEST_ONCE = 4096
"""Longest lane whose dear values are computed once for all other points: their arrays are the calling thread's."""
FEWEST_ONCE = 8
"""Fewest other points for which that pays."""


def generate_points(kernel: LoopKernel, name: str, comment: str | None = None) -> KernelSource:
    """The text of a kernel without row axes, in normal form."""
    if not kernel.outer:
        kernel = _with_one_axis(kernel)
    names = axis_names(kernel)
    lane = len(kernel.outer) - 1
    length = kernel.outer[lane]
    roots = [store.expression for store in kernel.outer_stores]
    # A load that strides along the lane meets its cache lines again at the next outer points: keep the
    # block short and let the other axes run within it.
    transposed = any(abs(index.strides[lane]) > 4 for index in indices(kernel))
    block = TRANSPOSED_BLOCK if transposed and lane > 0 else BLOCK
    if length < 2 * block:
        block = length
    blocks = ceil(length / block)
    others = kernel.outer[:lane]
    scope, before = Scope("c"), list[str]()
    if length <= LONGEST_ONCE and blocks == 1 and prod(others) >= FEWEST_ONCE:
        found = same_elsewhere(roots, scope, lane, range(lane), guarded=False)
        before = once_along_lane({node: f"fixed{number}" for number, node in enumerate(found)}, length, names[lane],
                                 scope, names, lane, "0", str(length))
    if transposed:
        lines = decode("task", (blocks, *others), ["block", *names[:lane]])
    else:
        lines = decode("task", (*others, blocks), [*names[:lane], "block"])
    first, last = "0", str(length)
    if blocks > 1:
        first, last = "first", "last"
        lines += [
            f"const int64_t first = block * {block};",
            f"const int64_t last = first + {block} < {length} ? first + {block} : {length};",
        ]
    else:
        lines = [line for line in lines if "int64_t block" not in line]
    lines += hoist(roots, scope, names, [lane])
    lines += lane_loop(
        roots,
        scope,
        names,
        lane,
        first,
        last,
        lambda inner: store_lines(kernel.outer_stores, kernel, inner, names),
        kernel=kernel,
    )
    work = prod(kernel.outer) * (cost(roots) / 8 + 1)
    body = parallel_for("task", prod(others) * blocks, lines, work)
    return definition(kernel, name, comment or f"Pointwise over {sizes_text(kernel.outer)}.", [*before, *body])


def _with_one_axis(kernel: LoopKernel) -> LoopKernel:
    """A single point as an axis of size 1."""
    from kernelwright.codegen.loops.normal_form import rewrite
    from kernelwright.plan.expressions import Index

    return rewrite(kernel, (1,), (), lambda index: Index((0,), index.offset))
