"""The meaning of a Contraction, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from kernelwright.codegen.loop_evaluator import evaluate
from kernelwright.plan.access import strides_of
from kernelwright.plan.expressions import Index, Load, Reduced, replaced
from kernelwright.plan.kernels import Contraction, LoopKernel, Store


def evaluate_contraction(kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64
                         ) -> list[torch.Tensor]:
    """The kernel's outputs as flat tensors, computed in ``dtype``; arguments and errors as in `evaluate`."""
    sums = sums_of_products(kernel, inputs, dtype)
    # The sums become one more input of a pointwise kernel.
    place = Load(len(inputs), Index(strides_of(kernel.domain)))
    stores = tuple(Store(s.buffer, s.index, replaced(s.expression, lambda e: place if e == Reduced(0) else None))
                   for s in kernel.stores)
    pointwise = LoopKernel(kernel.domain, (), (), (), stores, (*kernel.input_dtypes, "float32"), kernel.output_dtypes)
    return evaluate(pointwise, [*inputs, sums], dtype=dtype)


def sums_of_products(kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64
                     ) -> torch.Tensor:
    """The sums, of the kernel's domain."""
    x = _tensor(kernel.left, kernel.left_domain, kernel, inputs, dtype)
    w = _tensor(kernel.right, kernel.right_domain, kernel, inputs, dtype)
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


def _tensor(expression, domain, kernel: Contraction, inputs: Sequence[torch.Tensor], dtype: torch.dtype
            ) -> torch.Tensor:
    """An operand over its domain."""
    stored = str(dtype).removeprefix("torch.")
    loop = LoopKernel(domain, (), (), (), (Store(0, Index(strides_of(domain)), expression),), kernel.input_dtypes,
                      (stored,))
    return evaluate(loop, inputs, dtype=dtype)[0].reshape(domain)
