"""The meaning of an Attention, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelwright.codegen.reference.loops import node_value, positions
from kernelwright.ir.ops.attention import causal_product
from kernelwright.plan.expressions import Apply, Expression, walk
from kernelwright.plan.kernels import Attention


def evaluate(kernel: Attention, inputs: Sequence[torch.Tensor], output_sizes: Sequence[int],
             dtype: torch.dtype = torch.float64, rounding: bool = True) -> list[torch.Tensor]:
    """The kernel's output as a flat tensor, in a list, computed in ``dtype``; elements that no store writes are 0.
    rounding: whether the functions that round to a narrower type do so. Raises IndexError where a load or store leaves
    its buffer."""
    flat = [tensor.reshape(-1) for tensor in inputs]
    count = len(kernel.outer)

    def value(root: Expression, reduced: Sequence[Sequence[torch.Tensor]] = ()) -> torch.Tensor:
        memo: dict[Expression, torch.Tensor] = {}
        for node in walk(root):
            exact = not rounding and isinstance(node, Apply) and node.function.startswith(("round_", "to_float"))
            memo[node] = memo[node.arguments[0]].to(dtype) if exact else \
                node_value(node, kernel.domain, flat, reduced, memo, dtype)
        return torch.as_tensor(memo[root], dtype=dtype)

    def wide(root: Expression, *axes: int, reduced: Sequence[Sequence[torch.Tensor]] = ()) -> torch.Tensor:
        """The values over the outer axes and these of i, j, k and p, in this order."""
        sizes = [size if n < count or n - count in axes else 1 for n, size in enumerate(kernel.domain)]
        kept = value(root, reduced).expand(sizes)
        order = (*range(count), *(count + a for a in axes), *(count + a for a in range(4) if a not in axes))
        return kept.permute(order).flatten(count + len(axes)).squeeze(-1)

    query, key, values = wide(kernel.query, 0, 2), wide(kernel.key, 1, 2), wide(kernel.value, 1, 3)
    product = query @ key.transpose(-1, -2)
    score = wide(kernel.score, 0, 1, reduced=[[product[..., None, None]]])
    hidden = torch.zeros(kernel.rows, kernel.columns, dtype=torch.bool)
    if kernel.causal:
        hidden = torch.arange(kernel.columns) > torch.arange(kernel.rows)[:, None] + kernel.shift
    if kernel.softmax:
        score = score.masked_fill(hidden, -torch.inf)
        weight = torch.softmax(score, -1)
        if kernel.empty_rows:
            weight = weight.masked_fill(torch.isneginf(score).all(-1, keepdim=True), 0.0)
    else:
        weight = score.masked_fill(hidden, 0.0)
    result = causal_product(weight, values, kernel.shift) if kernel.causal else weight @ values
    output = torch.zeros(output_sizes[0], dtype=dtype)
    domain = (*kernel.outer, kernel.rows, 1, 1, kernel.width)
    result = result.reshape(*kernel.outer, kernel.rows, 1, 1, kernel.width)
    output[positions(kernel.store.index, domain).expand(domain).reshape(-1)] = result.reshape(-1)
    return [output]
