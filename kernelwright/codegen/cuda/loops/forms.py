"""Kernels made of a loop kernel: a part of its stores, with results read back, with other axes; and what later passes
need."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, prod

from kernelwright.codegen.cuda.loops.normal_form import Pass, change_kernel
from kernelwright.plan.expressions import Constant, Expression, Index, Load, Reduced, walk
from kernelwright.plan.kernels import LoopKernel

_OF_NOTHING = {"sum": 0.0, "product": 1.0, "max": -inf, "min": inf, "logsumexp": -inf, "moments": nan}


def only_outer(kernel: LoopKernel) -> LoopKernel:
    """The outer stores alone, without row axes."""
    split = len(kernel.outer)

    def cut(index: Index) -> Index:
        return Index(index.strides[:split], index.offset)

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Load):
            guards = tuple(replace(guard, index=cut(guard.index)) for guard in node.guards)
            return replace(node, index=cut(node.index), guards=guards)
        return None

    return change_kernel(replace(kernel, row=(), row_stores=(), reductions=()), change, cut)


def only_row(kernel: LoopKernel) -> LoopKernel:
    """The row stores alone, which read no reduction, as stores of a pointwise kernel."""
    return replace(kernel, outer=kernel.outer + kernel.row, row=(), reductions=(), outer_stores=kernel.row_stores,
                   row_stores=())


def along_row(kernel: LoopKernel) -> LoopKernel:
    """A pointwise kernel with its last axis as a row, whose threads stay on it."""
    return replace(kernel, outer=kernel.outer[:-1], row=kernel.outer[-1:], outer_stores=(),
                   row_stores=kernel.outer_stores)


def without_row(kernel: LoopKernel) -> LoopKernel:
    """The outer stores of reductions over nothing, which are constants."""

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Reduced):
            return Constant(_OF_NOTHING[kernel.reductions[node.reduction].kind])
        return None

    return replace(change_kernel(kernel, change), reductions=(), row_stores=())


def reading(kernel: LoopKernel, known: dict[tuple[int, int], int]) -> LoopKernel:
    """The kernel with known results read from workspace arrays over the outer points."""
    split = len(kernel.outer)
    strides = tuple(prod(kernel.outer[axis + 1 :]) for axis in range(split)) + (0,) * len(kernel.row)

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Reduced) and (node.reduction, node.component) in known:
            return Load(known[node.reduction, node.component], Index(strides))
        return None

    inputs = kernel.input_dtypes
    inputs += (kernel.compute,) * (max(known.values(), default=-1) + 1 - len(inputs))
    return replace(change_kernel(kernel, change), input_dtypes=inputs)


def taking_last(kernel: LoopKernel) -> LoopKernel:
    """The reductions with the last row axis as the last outer axis: every outer point has a part of a row."""
    split, last = len(kernel.outer), len(kernel.outer + kernel.row) - 1

    def index(old: Index) -> Index:
        return Index((*old.strides[:split], old.strides[last], *old.strides[split:last]), old.offset)

    def change(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        guards = tuple(replace(guard, index=index(guard.index)) for guard in node.guards)
        return replace(node, index=index(node.index), guards=guards)

    kernel = replace(kernel, row_stores=(), outer_stores=())
    return replace(change_kernel(kernel, change), outer=(*kernel.outer, kernel.row[-1]), row=kernel.row[:-1])


def used_later(kernel: LoopKernel, walks: list[Pass], number: int) -> list[tuple[int, int]]:
    """The results of a pass that later passes, row stores or the last merge read."""
    here = set(walks[number].reductions)
    roots = [kernel.reductions[n].expression for later in walks[number + 1 :] for n in later.reductions]
    roots += [store.expression for store in kernel.row_stores]
    if number < len(walks) - 1:
        roots += [store.expression for store in kernel.outer_stores]
    used = {
        (n.reduction, n.component)
        for root in roots
        for n in walk(root)
        if isinstance(n, Reduced) and n.reduction in here
    }
    return sorted(used)
