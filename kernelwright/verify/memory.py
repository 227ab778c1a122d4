"""Poisoned memory: what a candidate forgets to write must be visible.

An output that comes from ``torch.empty`` and is never written holds whatever lay there before, often the
right answer of the call before. Two measures make that visible: blocks of the outputs' sizes are filled and
freed just before a call (the allocator hands them out again), and during one call every ``empty`` that
Python asks for is filled. (A dispatch mode would also see those of C++, but a careful candidate runs its
kernels only where no dispatch mode is active, so it would not be the candidate that is looked at.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Floating memory is filled with NaN; integers with a value no label or index has.
INTEGER_POISON = 0x6B

_EMPTIES = ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"))


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


def poison_before(module: object, outputs: Iterable[torch.Tensor]) -> None:
    """Poison freed memory for the next call of ``module``: where it runs, if that is another process."""
    own = getattr(type(module), "poison_memory", None)
    if own is None:
        poison_freed_memory(outputs)
    else:
        own(module, outputs)


@contextmanager
def poisoned_empty() -> Iterator[None]:
    """Inside, every uninitialised tensor that Python code asks PyTorch for is poisoned."""
    originals = [(owner, name, getattr(owner, name)) for owner, name in _EMPTIES]
    try:
        for owner, name, original in originals:
            setattr(owner, name, _poisoning(original))
        yield
    finally:
        for owner, name, original in originals:
            if owner is torch.Tensor:
                delattr(owner, name)  # the original is inherited
            else:
                setattr(owner, name, original)


def _poisoning(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def empty(*arguments: Any, **named: Any) -> torch.Tensor:
        result = original(*arguments, **named)
        if result.device.type in ("cpu", "cuda"):
            with torch.no_grad():
                fill_with_poison(result)
        return result

    return empty
