"""The meaning of a LoopKernel, evaluated in PyTorch: the reference for every target's skeleton.

Slow and memory hungry (every subexpression is a tensor over the whole iteration domain), hence
for tests and small certificates only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from kernelwright.ir.scalar import KERNEL_FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Element, Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import LoopKernel, Reduction


def evaluate(
    kernel: LoopKernel,
    inputs: Sequence[torch.Tensor],
    output_sizes: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
    rounding: bool = True,
) -> list[torch.Tensor]:
    """The kernel's outputs as flat tensors, computed in ``dtype``.

    inputs: one tensor per ``kernel.input_dtypes``; the elements of its flattened form are indexed.
    output_sizes: element counts of the outputs; by default just past the largest index stored.
    Elements that no store writes are 0. Outputs that the kernel holds in a floating dtype come
    back in ``dtype``, others in their own.
    rounding: whether the functions that round to a narrower type do so.
    Raises IndexError where a load or store leaves its buffer.
    """
    sizes = kernel.outer + kernel.row
    flat = [tensor.reshape(-1) for tensor in inputs]
    required = required_output_sizes(kernel)
    output_sizes = list(required if output_sizes is None else output_sizes)
    for buffer, (size, need) in enumerate(zip(output_sizes, required, strict=True)):
        if size < need:
            raise IndexError(f"output {buffer} has {size} elements, the kernel stores to {need}")
    outputs = []
    for size, name in zip(output_sizes, kernel.output_dtypes, strict=True):
        stored = getattr(torch, name)
        outputs.append(torch.zeros(size, dtype=dtype if stored.is_floating_point else stored))

    reduced: list[tuple[torch.Tensor, ...]] = []
    memo: dict[Expression, torch.Tensor] = {}

    def value(expression: Expression) -> torch.Tensor:
        for node in walk(expression):
            if node not in memo:
                exact = not rounding and isinstance(node, Apply) and node.function.startswith(("round_", "to_float"))
                memo[node] = memo[node.arguments[0]].to(dtype) if exact else \
                    node_value(node, sizes, flat, reduced, memo, dtype)
        return memo[expression]

    for reduction in kernel.reductions:
        reduced.append(_reduce(reduction, value(reduction.expression).expand(sizes), len(kernel.outer)))
    ones = (1,) * len(kernel.row)
    for stores, domain in ((kernel.row_stores, sizes), (kernel.outer_stores, kernel.outer + ones)):
        for store in stores:
            target = outputs[store.buffer]
            result = value(store.expression).expand(domain).reshape(-1)
            result = result != 0 if target.dtype == torch.bool else result.to(target.dtype)
            target[positions(store.index, domain).expand(domain).reshape(-1)] = result
    return outputs


def positions(index: Index, sizes: Sequence[int]) -> torch.Tensor:
    """The values of ``index`` over a domain, int64, broadcastable to ``sizes``."""
    result = torch.full((1,) * len(sizes), index.offset, dtype=torch.int64)
    for axis, (stride, size) in enumerate(zip(index.strides, sizes, strict=True)):
        shape = [1] * len(sizes)
        shape[axis] = size
        if stride:
            result = result + (stride * torch.arange(size)).reshape(shape)
    return result


def required_output_sizes(kernel: LoopKernel) -> list[int]:
    """Per output, one more than the largest index stored (0 for an empty domain)."""
    result = [0] * len(kernel.output_dtypes)
    for store, domain in _stores(kernel):
        if all(domain):
            pairs = zip(store.index.strides, domain, strict=False)
            last = store.index.offset + sum(max(0, stride * (size - 1)) for stride, size in pairs)
            result[store.buffer] = max(result[store.buffer], last + 1)
    return result


def _stores(kernel: LoopKernel) -> Iterator[tuple]:
    yield from ((store, kernel.outer) for store in kernel.outer_stores)
    yield from ((store, kernel.outer + kernel.row) for store in kernel.row_stores)


def node_value(node: Expression, sizes: tuple[int, ...], inputs: Sequence[torch.Tensor],
               reduced: Sequence[Sequence[torch.Tensor]], memo: Mapping[Expression, torch.Tensor], dtype: torch.dtype
               ) -> torch.Tensor:
    """An expression over a domain, of whose arguments ``memo`` has the values; broadcastable to ``sizes``."""
    match node:
        case Constant(value=number):
            return torch.full((1,) * len(sizes), number, dtype=torch.int64 if isinstance(number, int) else dtype)
        case Reduced(reduction=number, component=component):
            return reduced[number][component]
        case Load(buffer=buffer, index=index, guards=guards, otherwise=otherwise):
            kind = torch.int64 if node.whole else dtype
            place = positions(index, sizes)
            legal = torch.ones_like(place, dtype=torch.bool)
            for guard in guards:
                at = positions(guard.index, sizes)
                legal = legal & (at >= 0) & (at < guard.size)
            place, legal = torch.broadcast_tensors(place, legal)
            outside = legal & ((place < 0) | (place >= inputs[buffer].numel()))
            if outside.any():
                raise IndexError(f"a load leaves input {buffer} of {inputs[buffer].numel()} elements")
            if not legal.any():
                return torch.full_like(place, otherwise, dtype=kind)
            loaded = inputs[buffer][torch.where(legal, place, torch.zeros_like(place))].to(kind)
            return torch.where(legal, loaded, torch.full((), otherwise, dtype=kind))
        case Element(buffer=buffer, arguments=(place,)):
            kind = torch.int64 if node.whole else dtype
            if not ((memo[place] >= 0) & (memo[place] < inputs[buffer].numel())).all():
                raise IndexError(f"an element leaves input {buffer} of {inputs[buffer].numel()} elements")
            return inputs[buffer][memo[place]].to(kind)
        case Apply(function=function, arguments=arguments):
            values = torch.broadcast_tensors(*(memo[argument] for argument in arguments))
            return KERNEL_FUNCTIONS[function].reference(*values).to(torch.int64 if is_whole(node) else dtype)
    raise TypeError(f"not an expression: {node!r}")


def _reduce(reduction: Reduction, values: torch.Tensor, outer: int) -> tuple[torch.Tensor, ...]:
    axes = tuple(range(outer, values.dim()))
    shape = values.shape[:outer] + (1,) * len(axes)
    rows = values.reshape(*values.shape[:outer], values.shape[outer:].numel())
    match reduction.kind:
        case "sum":
            parts = (rows.sum(-1),)
        case "product":
            parts = (rows.prod(-1),)
        case "max":
            parts = (rows.amax(-1),)
        case "min":
            parts = (rows.amin(-1),)
        case "logsumexp":
            parts = (torch.logsumexp(rows, -1),)
        case "moments":
            parts = (rows.mean(-1), rows.var(-1, correction=0), rows.std(-1, correction=0))
        case other:
            raise ValueError(f"unknown reduction {other!r}")
    return tuple(part.reshape(shape) for part in parts)
