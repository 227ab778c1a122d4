"""Grouped matrix products (``torch.nn.functional.grouped_mm``), as layers of experts use them, in float64.

PyTorch has them in float32 and 16 bits alone. The ranks say what is cut into groups, at the ends ``offs``: rows of
``a`` where ``a`` is (rows, depth) and ``b`` (groups, depth, columns); columns of ``b`` where ``a`` is (groups, rows,
depth) and ``b`` (depth, columns); the depth of two matrices, which give a matrix for each group. Two tensors of three
axes are a batch of products.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: The operators.
GROUPED_PRODUCTS = (torch.ops.aten._grouped_mm.default,)
#: How Python calls them.
NAMES = frozenset({"grouped_mm", "_grouped_mm"})


def grouped_shape(a: Sequence[int], b: Sequence[int], groups: int | None) -> tuple[int, ...]:
    """The shape of the result; ``groups``: how many ends there are in ``offs``, None where it is not given."""
    if len(a) == len(b):
        return (a[0] if groups is None else groups, a[-2], b[-1])
    return (a[-2], b[-1])


def grouped_products(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None,
                     bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """What ``grouped_mm`` gives, in the type of ``a``, with gradients; places of no group are 0 (PyTorch leaves there
    what memory held)."""
    if offs is None:
        result = a @ b
    else:
        ends = [int(end) for end in offs]
        parts = list(zip([0, *ends], ends, strict=False))
        shape = grouped_shape(a.shape, b.shape, len(ends))
        if a.dim() == b.dim():
            result = torch.stack([a[:, first:end] @ b[first:end] for first, end in parts])
        elif a.dim() == 2:
            made = [a[first:end] @ b[group] for group, (first, end) in enumerate(parts)]
            rest = a.new_zeros(shape[0] - sum(part.shape[0] for part in made), shape[1])
            result = torch.cat([*made, rest])
        else:
            made = [a[group] @ b[:, first:end] for group, (first, end) in enumerate(parts)]
            rest = a.new_zeros(shape[0], shape[1] - sum(part.shape[1] for part in made))
            result = torch.cat([*made, rest], 1)
    if bias is not None:
        result = result + bias
    return result if out_dtype is None or out_dtype.itemsize >= 4 else result.to(out_dtype)
