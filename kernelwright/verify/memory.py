"""Poisoned memory: what a candidate forgets to write must be visible.

An output that comes from ``torch.empty`` and is never written holds whatever lay there before, often the
right answer of the call before. Two measures make that visible: blocks of the outputs' sizes are filled and
freed just before a call (the allocator hands them out again), and during one call every ``empty`` that goes
through PyTorch's dispatcher, from Python or C++, is filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Floating memory is filled with NaN; integers with a value no label or index has.
INTEGER_POISON = 0x6B

_EMPTIES = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


def fill_with_poison(tensor: torch.Tensor) -> None:
    """Overwrite ``tensor`` with NaN, True, or `INTEGER_POISON` in every byte's place of an integer."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(INTEGER_POISON)


def poison_freed_memory(like: Iterable[torch.Tensor], *, copies: int = 2) -> int:
    """Allocate, fill and free ``copies`` blocks of each tensor's size; return the bytes that were filled.

    Stops early, without raising, where memory does not suffice.
    """
    blocks: list[torch.Tensor] = []
    filled = 0
    for tensor in like:
        for _ in range(copies):
            try:
                block = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            except (RuntimeError, MemoryError):
                return filled
            fill_with_poison(block)
            blocks.append(block)
            filled += block.numel() * block.element_size()
    return filled


class PoisonedEmpty(TorchDispatchMode):
    """Context in which every uninitialised tensor that PyTorch's dispatcher makes is poisoned."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTIES and isinstance(result, torch.Tensor) and result.device.type in ("cpu", "cuda"):
            fill_with_poison(result)
        return result
