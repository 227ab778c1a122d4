"""The meaning of a Scan or an Extremum, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from kernelwright.codegen.reference.loops import evaluate as evaluate_loop
from kernelwright.codegen.reference.loops import required_output_sizes as sizes_of_loop
from kernelwright.ir.ops.scans import SCANS
from kernelwright.ir.registry import OPERATORS
from kernelwright.plan.expressions import Expression, Index, Load, Reduced, replaced
from kernelwright.plan.kernels import Extremum, LoopKernel, Scan, Store

_OPERATORS = {kind: name for name, (kind, _, _) in SCANS.items()}


def evaluate(kernel: Scan | Extremum, inputs: Sequence[torch.Tensor], output_sizes: Sequence[int] | None = None,
             dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The kernel's outputs as flat tensors, computed in ``dtype`` (see
    :func:`kernelwright.codegen.reference.loops.evaluate`)."""
    domain = (*kernel.outer, kernel.length)
    strides = tuple(prod(domain[axis + 1:]) for axis in range(len(domain)))
    first = LoopKernel(domain, (), (), (), (Store(0, Index(strides), kernel.expression),), kernel.input_dtypes,
                       ("float64",), kernel.compute)
    values = evaluate_loop(first, inputs, [prod(domain)], dtype)[0].reshape(domain)
    if isinstance(kernel, Scan):
        scan = OPERATORS[_OPERATORS[kernel.kind]].reference
        states = [scan(values, axis=len(domain) - 1, exclusive=kernel.exclusive) if values.numel() else values]
        places = strides
    else:
        found = (values.max if kernel.kind == "max" else values.min)(-1)
        place = (values.argmax if kernel.kind == "max" else values.argmin)(-1)
        states, domain = [found.values, place], (*kernel.outer, 1)
        places = (*(prod(kernel.outer[axis + 1:]) for axis in range(len(kernel.outer))), 0)

    def change(node: Expression) -> Expression | None:
        return Load(len(inputs) + node.component, Index(places)) if isinstance(node, Reduced) else None

    stores = tuple(replace(s, expression=replaced(s.expression, change)) for s in kernel.stores)
    types = (*kernel.input_dtypes, *("float64", "int64")[:len(states)])
    last = LoopKernel(domain, (), (), (), stores, types, kernel.output_dtypes, kernel.compute)
    return evaluate_loop(last, [*inputs, *(s.contiguous() for s in states)], output_sizes, dtype)


def required_output_sizes(kernel: Scan | Extremum) -> list[int]:
    """Per output, one more than the largest index stored (0 for an empty domain)."""
    return sizes_of_loop(kernel.as_loop)
