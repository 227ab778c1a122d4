"""Loop kernels in the form that the CUDA schedules start from: few axes, passes, shared subexpressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from kernelwright.codegen.cuda.expressions import reach
from kernelwright.plan.expressions import (
    Apply,
    Constant,
    Expression,
    Guard,
    Index,
    Load,
    Reduced,
    is_whole,
    replaced,
    walk,
)
from kernelwright.plan.kernels import LoopKernel, Reduction, Store


def roots(kernel: LoopKernel) -> Iterator[Expression]:
    """The expressions of a kernel."""
    yield from (reduction.expression for reduction in kernel.reductions)
    yield from (store.expression for store in kernel.row_stores + kernel.outer_stores)


def loads(kernel: LoopKernel) -> list[Load]:
    """The distinct loads of a kernel."""
    return [n for n in walk(*roots(kernel)) if isinstance(n, Load)]


def change_kernel(
    kernel: LoopKernel,
    change: Callable[[Expression], Expression | None],
    index: Callable[[Index], Index] = lambda index: index,
) -> LoopKernel:
    """The kernel with its expressions rewritten and the indices of its stores changed."""
    memo: dict[Expression, Expression] = {}

    def stores(old: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(Store(s.buffer, index(s.index), replaced(s.expression, change, memo)) for s in old)

    return replace(
        kernel,
        reductions=tuple(Reduction(r.kind, replaced(r.expression, change, memo)) for r in kernel.reductions),
        row_stores=stores(kernel.row_stores),
        outer_stores=stores(kernel.outer_stores),
    )


def largest_load(kernel: LoopKernel) -> Load | None:
    """The load that touches the most elements, among those that move along the row where any does."""
    sizes = kernel.outer + kernel.row
    split = len(kernel.outer)

    def weight(load: Load) -> tuple[bool, int]:
        moving = [s for s, stride in zip(sizes, load.index.strides, strict=True) if stride]
        return any(load.index.strides[split:]), prod(moving)

    every = loads(kernel)
    return max(every, key=weight) if every else None


def normalise(kernel: LoopKernel) -> LoopKernel:
    """The equal kernel whose axes are ordered for contiguous access, merged, and longer than 1.

    Row axes: the strides of the largest load descend. Outer axes: those of the first store do in a
    pointwise kernel; else they keep their order, but the axis along which neighbours of the largest
    load lie becomes the last. Guards that always hold are dropped.
    """
    return arranged(kernel, *ordered(kernel))


def ordered(kernel: LoopKernel) -> tuple[list[int], list[int]]:
    """The outer and the row axes longer than 1, by number over both, in the order of the normal form."""
    sizes = kernel.outer + kernel.row
    split = len(kernel.outer)
    outer = [a for a in range(split) if sizes[a] != 1]
    row = [a for a in range(split, len(sizes)) if sizes[a] != 1]
    stores = kernel.outer_stores or kernel.row_stores
    large = largest_load(kernel)
    guide = large.index if large else (stores[0].index if stores else None)
    if guide is not None:
        row.sort(key=lambda a: (-abs(guide.strides[a]), a))
        if not kernel.row and stores:
            guide = stores[0].index
            outer.sort(key=lambda a: (-abs(guide.strides[a]), a))
        unit = [a for a in outer if guide.strides[a]]
        if unit:
            last = min(unit, key=lambda a: (abs(guide.strides[a]), -a))
            outer = [a for a in outer if a != last] + [last]
    return outer, row


def arranged(kernel: LoopKernel, outer: Sequence[int], row: Sequence[int]) -> LoopKernel:
    """The equal kernel with its axes (by number over outer, then row) in an order, merged where neighbours allow.

    Axes of size 1 may be left out. Guards that always hold are dropped.
    """
    sizes = kernel.outer + kernel.row
    indices = [store.index for store in kernel.row_stores + kernel.outer_stores]
    for load in loads(kernel):
        indices += [load.index, *(guard.index for guard in load.guards)]
    groups = [_merge(axes, sizes, indices) for axes in (outer, row)]

    def change(index: Index) -> Index:
        return Index(tuple(index.strides[group[-1]] for part in groups for group in part), index.offset)

    def change_load(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        kept = []
        for guard in node.guards:
            low, high = reach(guard.index, sizes)
            if low < 0 or high >= guard.size:
                kept.append(Guard(change(guard.index), guard.size))
        return replace(node, index=change(node.index), guards=tuple(kept))

    new = change_kernel(kernel, change_load, change)
    extents = [tuple(prod(sizes[axis] for axis in group) for group in part) for part in groups]
    return replace(new, outer=extents[0], row=extents[1])


def _merge(axes: Sequence[int], sizes: tuple[int, ...], indices: list[Index]) -> list[list[int]]:
    groups: list[list[int]] = []
    for axis in axes:
        previous = groups[-1][-1] if groups else None
        if previous is not None and all(
            i.strides[previous] == i.strides[axis] * sizes[axis] for i in indices
        ):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


@dataclass(frozen=True, slots=True)
class Pass:
    """Reductions evaluated in one walk of the row: their numbers, and what is done for each.

    ``exponential_sums`` pairs a reduction ``sum(exp(e - max(e)))`` with the number of that maximum:
    the two are one running pair.
    """

    reductions: tuple[int, ...]
    exponential_sums: tuple[tuple[int, int], ...] = ()


def passes(kernel: LoopKernel) -> list[Pass]:
    """The walks that the reductions need: one depends on none but those of earlier walks."""
    level: list[int] = []
    partner: dict[int, int] = {}
    for number, reduction in enumerate(kernel.reductions):
        used = {node.reduction for node in walk(reduction.expression) if isinstance(node, Reduced)}
        level.append(1 + max((level[u] for u in used), default=-1))
        for top in used:
            maximum = kernel.reductions[top]
            shifted = Apply("exp", (Apply("sub", (maximum.expression, Reduced(top))),))
            if (
                maximum.kind == "max"
                and reduction.kind == "sum"
                and reduction.expression == shifted
                and top not in partner.values()
            ):
                partner[number] = top
                level[number] = level[top]
    result = []
    for current in range(max(level, default=-1) + 1):
        here = tuple(n for n, own in enumerate(level) if own == current)
        result.append(Pass(here, tuple((n, partner[n]) for n in here if n in partner)))
    return result


def shared_rows(kernel: LoopKernel, walks: list[list[Expression]]) -> list[Expression]:
    """The values of a row that are worth keeping between walks: read from memory, and used in two or more.

    ``walks`` are the roots of each walk. A kept value depends on no reduction; the largest common
    subexpressions are taken, else the loads themselves.
    """
    split = len(kernel.outer)

    def varies(node: Expression) -> bool:
        """Whether some load inside moves along the row and is not one row for all outer points."""
        return any(
            isinstance(n, Load)
            and any(n.index.strides[split:])
            and (any(n.index.strides[:split]) or not kernel.outer)
            for n in walk(node)
        )

    def frontier(roots: Sequence[Expression]) -> list[Expression]:
        """The largest subexpressions without a reduction's result, of those that can be kept: they are of the
        kernel's floating type."""
        return [n for n in walk(*roots, into=lambda node: node.reduced)
                if not n.reduced and not is_whole(n) and not isinstance(n, Constant) and varies(n)]

    fronts = [frontier(walk_roots) for walk_roots in walks]
    counts: dict[Expression, int] = {}
    for front in fronts:
        for node in front:
            counts[node] = counts.get(node, 0) + 1
    kept = [node for node, count in counts.items() if count > 1]
    uses: dict[Load, int] = {}
    for front in fronts:
        for load in walk(*(f for f in front if f not in kept)):
            if isinstance(load, Load) and not load.whole and varies(load):
                uses[load] = uses.get(load, 0) + 1
    return kept + [load for load, count in uses.items() if count > 1 and load not in kept]
