"""Inputs of other layouts and sizes, made of a problem's own. Values stay, and NaN stands in memory beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.problem.inputs import map_tensors
from kernelwright.verify.flatten import tensors_of

Layout = Callable[[torch.Tensor], torch.Tensor | None]


def transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its last two axes exchanged in memory; None where that is the same."""
    if tensor.dim() < 2 or 1 in tensor.shape[-2:]:
        return None
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def sliced(tensor: torch.Tensor) -> torch.Tensor | None:
    """A part of rows that are longer by three (one axis: every second element)."""
    if tensor.dim() == 0 or tensor.numel() < 2:
        return None
    if tensor.dim() == 1:
        around = tensor.new_full((2 * tensor.numel(),), math.nan)[::2]
    else:
        around = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 3), math.nan)[..., : tensor.shape[-1]]
    return around.copy_(tensor)


def misaligned(tensor: torch.Tensor) -> torch.Tensor | None:
    """Contiguous, one element behind the start of its memory."""
    if not tensor.numel():
        return None
    return tensor.new_full((tensor.numel() + 1,), math.nan)[1:].view(tensor.shape).copy_(tensor)


def channels_last(tensor: torch.Tensor) -> torch.Tensor | None:
    """Axis 1 innermost in memory, for four and five axes."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats:
        return None
    return tensor.contiguous(memory_format=formats[tensor.dim()])


def expanded(tensor: torch.Tensor) -> torch.Tensor | None:
    """The first entry of axis 0 for all of them, by a stride of zero."""
    if tensor.dim() == 0 or tensor.shape[0] < 2:
        return None
    return tensor[:1].clone().expand(tensor.shape)


def with_layout(inputs: Sequence[Any], layout: Layout) -> list[Any]:
    """``inputs`` with ``layout`` for every floating tensor that has it."""
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point:
            return tensor
        changed = layout(tensor)
        return tensor if changed is None else changed

    return map_tensors(list(inputs), change)


def has_layout(inputs: Sequence[Any], layout: Layout) -> bool:
    """Whether ``layout`` gives any floating input other strides or another place."""
    def differs(tensor: torch.Tensor) -> bool:
        changed = layout(tensor) if tensor.dtype.is_floating_point else None
        return changed is not None and (changed.stride() != tensor.stride()
                                        or changed.storage_offset() != tensor.storage_offset())

    return any(differs(t) for t in tensors_of(list(inputs)))


def batch_of(inputs: Sequence[Any]) -> int | None:
    """The size of axis 0 of the first input, where that is a tensor with axes."""
    first = inputs[0] if inputs else None
    return first.shape[0] if isinstance(first, torch.Tensor) and first.dim() else None


def with_batch(inputs: Sequence[Any], others: Sequence[Any], size: int) -> list[Any]:
    """``inputs`` with ``size`` entries along axis 0 where they have the batch's size there; ``others``, inputs of
    another seed, give the entries that are missing."""
    batch = batch_of(inputs)

    def change(tensor: Any, other: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.dim() or tensor.shape[0] != batch:
            return tensor
        rows = [tensor, other] * (size // (2 * tensor.shape[0]) + 1)
        return torch.cat(rows)[:size].contiguous()

    return [change(t, o) for t, o in zip(inputs, others, strict=True)]
