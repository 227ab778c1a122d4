"""Poisoned memory: what a candidate forgets to write must be visible.

An output that comes from ``torch.empty`` and is never written holds whatever lay there before, often the
right answer of the call before. Two measures make that visible: blocks of the outputs' sizes are filled and
freed just before a call (the allocator hands them out again), and during two calls every ``empty`` that
Python asks for is filled, with NaN in one and a finite number in the other, so that whatever the first call met, one
of them meets something else. (A dispatch mode would also see those of C++, but a careful candidate runs its
kernels only where no dispatch mode is active, so it would not be the candidate that is looked at.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernelwright.verify.flatten import flatten
from kernelwright.verify.observe import identical

#: Floating memory is filled with NaN, or with a number that every floating type has; integers with values that few
#: labels or indices have.
FINITE_POISON = 64.0
INTEGER_POISON = 0x6B
OTHER_INTEGER_POISON = 0x5A

_EMPTIES = ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"))


def fill_with_poison(tensor: torch.Tensor, finite: bool = False) -> None:
    """Overwrite ``tensor``, of whatever type. finite: with the other of its two poisons, numbers and False."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(FINITE_POISON if finite else float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(not finite)
    else:
        tensor.fill_(OTHER_INTEGER_POISON if finite else INTEGER_POISON)


def poison_freed_memory(like: Iterable[torch.Tensor], *, copies: int = 2, finite: bool = False) -> int:
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
            fill_with_poison(block, finite)
            blocks.append(block)
            filled += block.numel() * block.element_size()
    return filled


def poison_before(module: object, outputs: Iterable[torch.Tensor], finite: bool = False) -> None:
    """Poison freed memory for the next call of ``module``: where it runs, if that is another process (whose poisons
    take turns by themselves)."""
    own = getattr(type(module), "poison_memory", None)
    if own is None:
        poison_freed_memory(outputs, finite=finite)
    else:
        own(module, outputs)


def differ_by_poison(left: object, right: object) -> bool:
    """Whether nested results differ, and only in elements that hold poison in one of the two.

    A candidate that forgets to write may meet the same poison in its first calls and another later. Of truth values,
    which all may be poison, nothing is said.
    """
    lefts, rights = flatten(left), flatten(right)
    if lefts.keys() != rights.keys():
        return False
    differ = False
    for path, a in lefts.items():
        b = rights[path]
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or (a is not b and not bool(a == b)):
                return False
            continue
        if identical(a, b):
            continue
        if a.shape != b.shape or a.dtype is not b.dtype or a.device != b.device or a.layout is not torch.strided:
            return False
        if a.dtype is torch.bool:
            return False
        if not bool((_is_poison(a) | _is_poison(b) | (a == b)).all()):
            return False
        differ = True
    return differ


def _is_poison(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.isnan() | (tensor == FINITE_POISON)
    return (tensor == INTEGER_POISON) | (tensor == OTHER_INTEGER_POISON)


@contextmanager
def poisoned_empty(finite: bool = False) -> Iterator[None]:
    """Inside, every uninitialised tensor that Python code asks PyTorch for is poisoned, as by `fill_with_poison`."""
    originals = [(owner, name, getattr(owner, name)) for owner, name in _EMPTIES]
    try:
        for owner, name, original in originals:
            setattr(owner, name, _poisoning(original, finite))
        yield
    finally:
        for owner, name, original in originals:
            if owner is torch.Tensor:
                delattr(owner, name)  # the original is inherited
            else:
                setattr(owner, name, original)


def _poisoning(original: Callable[..., torch.Tensor], finite: bool) -> Callable[..., torch.Tensor]:
    def empty(*arguments: Any, **named: Any) -> torch.Tensor:
        result = original(*arguments, **named)
        if result.device.type in ("cpu", "cuda"):
            with torch.no_grad():
                fill_with_poison(result, finite)
        return result

    return empty
