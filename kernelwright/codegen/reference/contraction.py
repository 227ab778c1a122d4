"""The meaning of a Contraction, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import torch

from kernelwright.codegen.reference.loops import evaluate
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Guard, Index, Load, Reduced, replaced, walk
from kernelwright.plan.kernels import LoopKernel, Reduction, Store
from kernelwright.plan.reading.access import strides_of


def evaluate_contraction(kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64,
                         rounding: bool = True) -> list[torch.Tensor]:
    """The kernel's outputs as flat tensors, computed in ``dtype``; arguments and errors as in `evaluate`."""
    # The sums become one more input of kernels that store, and before that reduce, if anything is reduced.
    operands = [*inputs, sums_of_products(kernel, inputs, dtype, rounding)]
    spatial = tuple(range(3, len(kernel.domain)))
    reduced = [s for s in kernel.stores if uses_reductions(s.expression)]
    others = [s for s in kernel.stores if s not in reduced]
    if kernel.reductions:
        loops = [_loop(kernel, kernel.reductions, kernel.stores, (2,))]
    elif kernel.position_reductions:
        loops = [_loop(kernel, kernel.position_reductions, reduced, spatial), _loop(kernel, (), others)]
    elif kernel.pools:
        loops = [_pooling(kernel, reduced), _loop(kernel, (), others)]
    else:
        loops = [_loop(kernel, (), kernel.stores)]
    found: dict[int, torch.Tensor] = {}
    for loop in loops:
        written = [s.buffer for s in (*loop.row_stores, *loop.outer_stores)]
        if written:
            outputs = evaluate(loop, operands, dtype=dtype, rounding=rounding)
            found |= {buffer: outputs[buffer] for buffer in written}
    return [found[buffer] for buffer in range(len(kernel.output_dtypes))]


def uses_reductions(expression: Expression) -> bool:
    """Whether an expression reads what is reduced, beyond the sums of products."""
    return any(isinstance(part, Reduced) and part.reduction for part in walk(expression))


def _loop(kernel: Contraction, reductions: Sequence[Reduction], stores: Sequence[Store], rows: tuple[int, ...] = ()
          ) -> LoopKernel:
    """Stores over the kernel's domain, after reductions over its axes ``rows``; the sums are the last input."""
    return _reducing(kernel, kernel.domain, Index(strides_of(kernel.domain)), reductions, stores, rows)


def _pooling(kernel: Contraction, stores: Sequence[Store]) -> LoopKernel:
    """Stores of pools: the domain is the pooled one, with the place in a window behind it."""
    strides, window = strides_of(kernel.domain), kernel.pool_window
    first = len(kernel.domain) - len(window)

    def inside(index: Index) -> Index:
        """The index in a pool's expression, which is over the kernel's domain."""
        whole = (s * size for s, size in zip(index.strides[first:], window, strict=True))
        return Index((*index.strides[:first], *whole, *index.strides[first:]), index.offset)

    def behind(index: Index) -> Index:
        """The index with the axes of a window, along which it does not move."""
        return Index((*index.strides, *(0 for _ in window)), index.offset)

    reductions = [Reduction(r.kind, _moved(r.expression, inside)) for r in kernel.pools]
    widened = [Store(s.buffer, behind(s.index), _moved(s.expression, behind)) for s in stores]
    places = range(len(kernel.domain), len(kernel.domain) + len(window))
    return _reducing(kernel, (*kernel.pooled_domain, *window), inside(Index(strides)), reductions, widened,
                     tuple(places))


def _moved(expression: Expression, moved: Callable[[Index], Index]) -> Expression:
    """The expression with other indices."""
    def changed(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        guards = tuple(Guard(moved(g.index), g.size) for g in node.guards)
        return replace(node, index=moved(node.index), guards=guards)

    return replaced(expression, changed)


def _reducing(kernel: Contraction, domain: tuple[int, ...], place: Index, reductions: Sequence[Reduction],
              stores: Sequence[Store], rows: tuple[int, ...]) -> LoopKernel:
    """Reductions over the axes ``rows`` of a domain, in which the sums are at ``place`` of the last input."""
    order = [a for a in range(len(domain)) if a not in rows] + list(rows)

    def ordered(index: Index) -> Index:
        return Index(tuple(index.strides[a] for a in order), index.offset)

    def changed(node: Expression) -> Expression | None:
        if isinstance(node, Reduced):
            return Reduced(node.reduction - 1, node.component) if node.reduction else sums
        return None

    def prepared(expression: Expression) -> Expression:
        return replaced(_moved(expression, ordered), changed)

    sums = Load(len(kernel.input_dtypes), ordered(place))
    stores = [Store(s.buffer, ordered(s.index), prepared(s.expression)) for s in stores]
    split = len(order) - len(rows)
    along = [s for s in stores if any(s.index.strides[split:])]
    return LoopKernel(tuple(domain[a] for a in order[:split]), tuple(domain[a] for a in rows),
                      tuple(Reduction(r.kind, prepared(r.expression)) for r in reductions), tuple(along),
                      tuple(s for s in stores if s not in along), (*kernel.input_dtypes, "float32"),
                      kernel.output_dtypes)


def sums_of_products(kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64,
                     rounding: bool = True) -> torch.Tensor:
    """The sums, of the kernel's domain."""
    x = operand_values(kernel.left, kernel.left_domain, kernel, inputs, dtype, rounding)
    w = operand_values(kernel.right, kernel.right_domain, kernel, inputs, dtype, rounding)
    result = torch.zeros(kernel.domain, dtype=dtype)
    for taps in product(*(a.taps for a in kernel.axes)):
        read, written = [], []
        for axis, tap in zip(kernel.axes, taps, strict=True):
            u = torch.arange(-(-(axis.out_size - tap.phase) // axis.out_stride))
            q = axis.in_stride * u + tap.offset
            inside = (q >= 0) & (q < axis.in_size)
            read.append(q[inside])
            written.append((tap.phase + axis.out_stride * u)[inside])
        part = x
        for number, positions in enumerate(read):
            part = part.index_select(3 + number, positions)
        weight = w[(slice(None), slice(None), slice(None), *(t.number for t in taps))]
        sums = torch.einsum("ngc...,goc->ngo...", part, weight)
        if not written:
            result += sums
        elif sums.numel():
            grid = torch.meshgrid(*written, indexing="ij")
            result[(slice(None), slice(None), slice(None), *grid)] += sums
    return result


def operand_values(expression: Expression, domain: tuple[int, ...], kernel: Contraction,
                   inputs: Sequence[torch.Tensor], dtype: torch.dtype, rounding: bool = True) -> torch.Tensor:
    """An operand over its domain."""
    stored = str(dtype).removeprefix("torch.")
    loop = LoopKernel(domain, (), (), (), (Store(0, Index(strides_of(domain)), expression),), kernel.input_dtypes,
                      (stored,))
    return evaluate(loop, inputs, dtype=dtype, rounding=rounding)[0].reshape(domain)
