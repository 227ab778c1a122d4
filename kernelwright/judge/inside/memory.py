"""The worker's memory: the judge's arenas as tensors, and poison in what a candidate gets without having written it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_empty, _frombuffer, _fill, _set_no_grad = torch.empty, torch.frombuffer, torch.Tensor.fill_, torch.no_grad
_contiguous, _view, _flatten = torch.Tensor.is_contiguous, torch.Tensor.view, torch.Tensor.flatten
_EMPTIES = ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"))
_M_PERTURB = -6  # mallopt: what glibc writes into memory that it hands out, inverted


class Mapped:
    """An arena of the judge, mapped. It only grows, so tensors on an older mapping stay valid."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = 0
        self.memory = _empty(0, dtype=torch.uint8)

    def bytes(self, at: int, count: int) -> torch.Tensor:
        """``count`` bytes from ``at`` on as a uint8 tensor that shares the arena's memory."""
        if at + count > self.size:
            self.size = os.fstat(self.descriptor).st_size
            self.memory = _frombuffer(mmap.mmap(self.descriptor, self.size), dtype=torch.uint8)
        if at + count > self.size:
            raise EOFError(f"the arena has {self.size} bytes, not {at + count}")
        return self.memory[at:at + count]


@contextmanager
def poisoned(order: dict[str, Any] | None, device: torch.device) -> Iterator[None]:
    """Memory that is handed out uninitialised is full of the byte ``order["pattern"]``.

    Freed blocks of ``order["sizes"]`` bytes are filled beforehand, for the device's allocator and the C library's;
    glibc fills what it hands out during the call, and with ``order["empties"]`` torch.empty and its like do.
    """
    if order is None:
        yield
        return
    pattern = int(order["pattern"])
    blocks = []
    try:
        for size in order["sizes"]:
            for _ in range(2):
                blocks.append(_fill(_empty(size, dtype=torch.uint8, device=device), pattern))
    except (RuntimeError, MemoryError):  # as much as there is memory for
        pass
    blocks.clear()
    perturb = getattr(ctypes.CDLL(None), "mallopt", None)
    originals = [(owner, name, getattr(owner, name)) for owner, name in _EMPTIES] if order["empties"] else []
    try:
        if perturb is not None:
            perturb(_M_PERTURB, pattern ^ 0xFF)
        for owner, name, original in originals:
            setattr(owner, name, _poisoning(original, pattern))
        yield
    finally:
        if perturb is not None:
            perturb(_M_PERTURB, 0)
        for owner, name, original in originals:
            if owner is torch.Tensor:
                delattr(owner, name)  # the original is inherited
            else:
                setattr(owner, name, original)


def _poisoning(original: Callable[..., torch.Tensor], pattern: int) -> Callable[..., torch.Tensor]:
    def empty(*arguments: Any, **named: Any) -> torch.Tensor:
        result = original(*arguments, **named)
        if type(result) is torch.Tensor and result.device.type in ("cpu", "cuda") and _contiguous(result):
            with _set_no_grad():
                # A boolean has no byte but 0 and 1.
                if result.dtype is torch.bool:
                    result.fill_(True)
                elif result.numel():
                    _fill(_view(_flatten(result.detach()), torch.uint8), pattern)
        return result

    return empty
