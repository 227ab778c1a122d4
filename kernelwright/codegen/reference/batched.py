"""The meaning of a BatchedProduct, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelwright.codegen.reference.loops import node_value, positions
from kernelwright.plan.expressions import Expression, walk
from kernelwright.plan.kernels import BatchedProduct


def evaluate(kernel: BatchedProduct, inputs: Sequence[torch.Tensor], output_sizes: Sequence[int],
             dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The kernel's output as a flat tensor, in a list, computed in ``dtype``; elements that no store writes are 0.
    Raises IndexError where a load or store leaves its buffer."""
    flat = [tensor.reshape(-1) for tensor in inputs]
    kinds = [kernel.outer, kernel.rows, kernel.columns, kernel.depth]
    ones = [(1,) * len(kind) for kind in kinds]

    def value(root: Expression, reduced: Sequence[Sequence[torch.Tensor]] = ()) -> torch.Tensor:
        memo: dict[Expression, torch.Tensor] = {}
        for node in walk(root):
            memo[node] = node_value(node, kernel.domain, flat, reduced, memo, dtype)
        return torch.as_tensor(memo[root], dtype=dtype)

    def matrix(root: Expression, first: int, second: int) -> torch.Tensor:
        """The values over the outer axes and these two kinds."""
        sizes = [size for n, kind in enumerate(kinds) for size in (kind if n in (0, first, second) else ones[n])]
        found = value(root).expand(sizes)
        return found.reshape(kernel.groups, *kernel.sizes[first - 1:first], *kernel.sizes[second - 1:second])

    left, right = matrix(kernel.left, 1, 3), matrix(kernel.right, 2, 3)
    domain = (*kernel.outer, *kernel.rows, *kernel.columns, *ones[3])
    sums = (left @ right.transpose(-1, -2)).reshape(domain)
    result = value(kernel.store.expression, [[sums]]).expand(domain)
    output = torch.zeros(output_sizes[0], dtype=dtype)
    output[positions(kernel.store.index, domain).expand(domain).reshape(-1)] = result.reshape(-1)
    return [output]
