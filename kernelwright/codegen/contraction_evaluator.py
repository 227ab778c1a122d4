"""The meaning of a Contraction, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch

from kernelwright.codegen.loop_evaluator import evaluate
from kernelwright.plan.access import strides_of
from kernelwright.plan.expressions import Expression, Guard, Index, Load, Reduced, replaced
from kernelwright.plan.kernels import Contraction, LoopKernel, Reduction, Store


def evaluate_contraction(kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64,
                         rounding: bool = True) -> list[torch.Tensor]:
    """The kernel's outputs as flat tensors, computed in ``dtype``; arguments and errors as in `evaluate`."""
    sums = sums_of_products(kernel, inputs, dtype, rounding)
    # The sums become one more input of a kernel that stores, and before that reduces the channels, if anything.
    place = Load(len(inputs), Index(strides_of(kernel.domain)))
    rows = [2] if kernel.reductions else []
    order = [a for a in range(len(kernel.domain)) if a not in rows] + rows

    def ordered(index: Index) -> Index:
        return Index(tuple(index.strides[a] for a in order), index.offset)

    def changed(node: Expression) -> Expression | None:
        if isinstance(node, Reduced):
            return Reduced(node.reduction - 1, node.component) if node.reduction else changed(place)
        if isinstance(node, Load):
            guards = tuple(Guard(ordered(g.index), g.size) for g in node.guards)
            return replace(node, index=ordered(node.index), guards=guards)
        return None

    stores = [Store(s.buffer, ordered(s.index), replaced(s.expression, changed)) for s in kernel.stores]
    along = [s for s in stores if rows and s.index.strides[-1]]
    sizes = tuple(kernel.domain[a] for a in order)
    split = len(order) - len(rows)
    reductions = tuple(Reduction(r.kind, replaced(r.expression, changed)) for r in kernel.reductions)
    loop = LoopKernel(sizes[:split], sizes[split:], reductions, tuple(along),
                      tuple(s for s in stores if s not in along), (*kernel.input_dtypes, "float32"),
                      kernel.output_dtypes)
    return evaluate(loop, [*inputs, sums], dtype=dtype, rounding=rounding)


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


def operand_values(expression, domain, kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype,
            rounding: bool = True) -> torch.Tensor:
    """An operand over its domain."""
    stored = str(dtype).removeprefix("torch.")
    loop = LoopKernel(domain, (), (), (), (Store(0, Index(strides_of(domain)), expression),), kernel.input_dtypes,
                      (stored,))
    return evaluate(loop, inputs, dtype=dtype, rounding=rounding)[0].reshape(domain)
