"""Loop kernels in a normal form: axes ordered by stride, merged where contiguous, without size 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import inf, nan, prod

from kernelwright.algebra.build import NARROW
from kernelwright.ir.scalar import ROUNDINGS, UNFUSED
from kernelwright.plan.expressions import (
    Apply,
    Constant,
    Expression,
    Guard,
    Index,
    Load,
    Reduced,
    ends_in_product,
    replaced,
    walk,
)
from kernelwright.plan.kernels import LoopKernel, Reduction, Store


def normalise(kernel: LoopKernel) -> LoopKernel:
    """The same kernel with its outer axes and its row axes reordered and merged.

    Axes are sorted by the strides of what moves the most data, largest first; neighbours merge
    where every index passes from one to the next contiguously.
    """
    split = len(kernel.outer)
    sizes = kernel.outer + kernel.row
    ranked = _by_traffic(kernel)

    def order(axes: range) -> list[int]:
        return sorted(
            (a for a in axes if sizes[a] != 1),
            key=lambda a: (tuple(-abs(index.strides[a]) for index in ranked), a),
        )

    outer, row = order(range(split)), order(range(split, len(sizes)))
    everything = list(dict.fromkeys(indices(kernel)))
    groups = [_merged(axes, sizes, everything) for axes in (outer, row)]

    def change(index: Index) -> Index:
        return Index(tuple(index.strides[group[-1]] for part in groups for group in part), index.offset)

    new_sizes = [tuple(prod(sizes[axis] for axis in group) for group in part) for part in groups]
    return rewrite(kernel, new_sizes[0], new_sizes[1], change)


def rounded_once(kernel: LoopKernel) -> LoopKernel:
    """The equal kernel without roundings to 16 bits that stores into that type make anyway."""
    def once(stores: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(Store(s.buffer, s.index, _unrounded(s.expression, kernel.output_dtypes[s.buffer])) for s in stores)

    return dataclasses.replace(kernel, row_stores=once(kernel.row_stores), outer_stores=once(kernel.outer_stores))


def _unrounded(value: Expression, dtype: str) -> Expression:
    if dtype in NARROW and isinstance(value, Apply) and value.function == ROUNDINGS[dtype].name:
        return value.arguments[0]
    return value


def in_order(kernel: LoopKernel, order: Sequence[int]) -> LoopKernel:
    """The same pointwise kernel with its axes in another order."""
    if tuple(order) == tuple(range(len(kernel.outer))):
        return kernel
    groups = _merged(list(order), kernel.outer, list(dict.fromkeys(indices(kernel))))
    sizes = tuple(prod(kernel.outer[axis] for axis in group) for group in groups)
    return rewrite(
        kernel, sizes, (), lambda index: Index(tuple(index.strides[group[-1]] for group in groups), index.offset)
    )


def _merged(axes: list[int], sizes: tuple[int, ...], everything: list[Index]) -> list[list[int]]:
    groups: list[list[int]] = []
    for axis in axes:
        previous = groups[-1][-1] if groups else None
        if previous is not None and all(
            i.strides[previous] == i.strides[axis] * sizes[axis] for i in everything
        ):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def expressions(kernel: LoopKernel) -> Iterator[Expression]:
    """The root expressions of a kernel."""
    yield from (reduction.expression for reduction in kernel.reductions)
    yield from (store.expression for store in kernel.row_stores + kernel.outer_stores)


def indices(kernel: LoopKernel) -> Iterator[Index]:
    """Every index of a kernel, those of guards included."""
    for node in walk(*expressions(kernel)):
        if isinstance(node, Load):
            yield node.index
            yield from (guard.index for guard in node.guards)
    yield from (store.index for store in kernel.row_stores + kernel.outer_stores)


def _by_traffic(kernel: LoopKernel) -> list[Index]:
    """Indices of loads and stores, those that touch the most axes first (stores before loads)."""
    stores = [store.index for store in kernel.row_stores + kernel.outer_stores]
    loads = [node.index for node in walk(*expressions(kernel)) if isinstance(node, Load)]
    return sorted(dict.fromkeys(stores + loads), key=lambda index: -sum(s != 0 for s in index.strides))


def binding(guards: tuple[Guard, ...], sizes: tuple[int, ...]) -> tuple[Guard, ...]:
    """The guards that fail somewhere on the domain ``sizes``."""
    result = []
    for guard in guards:
        reach = [stride * (size - 1) for stride, size in zip(guard.index.strides, sizes, strict=True)]
        low = guard.index.offset + sum(min(0, r) for r in reach)
        high = guard.index.offset + sum(max(0, r) for r in reach)
        if low < 0 or high >= guard.size:
            result.append(guard)
    return tuple(result)


def shifted(expression: Expression, axis: int, places: int) -> Expression:
    """``expression`` at the point ``places`` further along ``axis``."""

    def replace(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        index = Index(node.index.strides, node.index.offset + places * node.index.strides[axis])
        return dataclasses.replace(node, index=index)

    return replaced(expression, replace)


def rewrite(
    kernel: LoopKernel, outer: tuple[int, ...], row: tuple[int, ...], change: Callable[[Index], Index]
) -> LoopKernel:
    """The kernel over other axes, every index changed."""
    memo: dict[Expression, Expression] = {}

    def replace(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        guards = tuple(Guard(change(guard.index), guard.size) for guard in node.guards)
        return dataclasses.replace(node, index=change(node.index), guards=binding(guards, outer + row))

    def stores(old: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(Store(s.buffer, change(s.index), replaced(s.expression, replace, memo)) for s in old)

    return LoopKernel(
        outer,
        row,
        tuple(Reduction(r.kind, replaced(r.expression, replace, memo)) for r in kernel.reductions),
        stores(kernel.row_stores),
        stores(kernel.outer_stores),
        kernel.input_dtypes,
        kernel.output_dtypes,
        kernel.compute,
    )


def without_rows(kernel: LoopKernel) -> LoopKernel:
    """The equal kernel with an empty row: every point of the row is written out.

    For windows and other short rows, and for rows of size 0.
    """
    split = len(kernel.outer)
    points = list(product(*(range(size) for size in kernel.row)))
    values: dict[Reduced, Expression] = {}

    def at(point: tuple[int, ...]) -> Callable[[Expression], Expression]:
        memo: dict[Expression, Expression] = {}

        def replace(node: Expression) -> Expression | None:
            if isinstance(node, Reduced):
                return values[node]
            if isinstance(node, Load):
                guards = tuple(Guard(fixed(guard.index, point), guard.size) for guard in node.guards)
                return dataclasses.replace(
                    node, index=fixed(node.index, point), guards=binding(guards, kernel.outer)
                )
            return None

        return lambda expression: replaced(expression, replace, memo)

    def fixed(index: Index, point: tuple[int, ...]) -> Index:
        moved = sum(stride * place for stride, place in zip(index.strides[split:], point, strict=False))
        return Index(index.strides[:split], index.offset + moved)

    for number, reduction in enumerate(kernel.reductions):
        elements = [at(point)(reduction.expression) for point in points]
        for component, value in enumerate(_combined(reduction.kind, elements)):
            values[Reduced(number, component)] = value
    stores = [
        Store(s.buffer, fixed(s.index, point), at(point)(s.expression))
        for s in kernel.row_stores
        for point in points
    ]
    stores += [Store(s.buffer, fixed(s.index, ()), at(())(s.expression)) for s in kernel.outer_stores]
    return LoopKernel(
        kernel.outer, (), (), (), tuple(stores), kernel.input_dtypes, kernel.output_dtypes, kernel.compute
    )


def _combined(kind: str, elements: list[Expression]) -> tuple[Expression, ...]:
    """The components of a reduction of written-out elements."""
    if not elements:
        empty = {"sum": (0.0,), "product": (1.0,), "max": (-inf,), "min": (inf,), "logsumexp": (-inf,),
                 "moments": (nan, nan, nan)}
        return tuple(Constant(value) for value in empty[kind])
    match kind:
        case "sum":  # from +0 on, as elsewhere: a sum of -0 alone is +0
            total = _tree("add", elements)
            return (Apply(UNFUSED["add"].name if ends_in_product(total) else "add", (total, Constant(0.0))),)
        case "product":  # one after the other, as PyTorch: where some leave the range, the order is seen
            total = reduce(lambda one, other: Apply("mul", (one, other)), elements)
            return (Apply(UNFUSED["add"].name, (total, Constant(-0.0))) if ends_in_product(total) else total,)
        case "max" | "min":
            return (_tree("maximum" if kind == "max" else "minimum", elements[::-1]),)  # of equals the first
        case "logsumexp":
            origin = Apply("origin", (_tree("maximum", elements),))
            total = _tree("add", [Apply("exp", (Apply("sub", (e, origin)),)) for e in elements])
            return (Apply("add", (origin, Apply("log", (total,)))),)
        case "moments":
            return _moments(elements)
    raise ValueError(f"unknown reduction {kind!r}")


def _moments(elements: list[Expression]) -> tuple[Expression, ...]:
    """Mean, variance and deviation. Relative to the first element, as all moments; and the deviation in units of the
    largest gap, whose squares are in range."""
    share = Constant(1.0 / len(elements))
    origin = Apply("origin", (elements[0],))
    moved = [Apply("sub", (e, origin)) for e in elements]
    centre = Apply("mul", (_tree("add", moved), share))
    gaps = [Apply("sub", (e, centre)) for e in moved]
    variance = Apply("mul", (_tree("add", [Apply("square", (g,)) for g in gaps]), share))
    largest = _tree("maximum", [Apply("abs", (g,)) for g in gaps])
    shares = [Apply("square", (Apply("div", (g, largest)),)) for g in gaps]
    deviation = Apply("mul", (largest, Apply("sqrt", (Apply("mul", (_tree("add", shares), share)),))))
    some = Apply("gt", (largest, Constant(0.0)))
    return Apply("add", (origin, centre)), variance, Apply("where", (some, deviation, largest))


def _tree(function: str, elements: list[Expression]) -> Expression:
    while len(elements) > 1:
        pairs = [Apply(function, (a, b)) for a, b in zip(elements[::2], elements[1::2], strict=False)]
        elements = pairs + elements[2 * len(pairs) :]
    return elements[0]


def passes(reductions: tuple[Reduction, ...]) -> list[list[int]]:
    """Reduction numbers by walk of the row: each uses only results of earlier walks."""
    level: list[int] = []
    for reduction in reductions:
        used = [level[node.reduction] for node in walk(reduction.expression) if isinstance(node, Reduced)]
        level.append(1 + max(used, default=-1))
    return [
        [n for n, at in enumerate(level) if at == walk_number]
        for walk_number in range(max(level, default=-1) + 1)
    ]
