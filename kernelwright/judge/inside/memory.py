"""The worker's memory: what it shares with the judge, as tensors, and poison in what a candidate has not written."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from inside.driver import Block, Driver
from inside.tensors import ON_DEVICE, aligned

_empty, _frombuffer, _fill, _set_no_grad = torch.empty, torch.frombuffer, torch.Tensor.fill_, torch.no_grad
_contiguous, _view, _flatten = torch.Tensor.is_contiguous, torch.Tensor.view, torch.Tensor.flatten
_empty_cache = torch.cuda.empty_cache
_EMPTIES = ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"))
#: mallopt: the byte that glibc writes into memory that it hands out, inverted. Zero is off, so that 0xFF has a bit
#: beside the byte, of which glibc writes nothing. Blocks below a kilobyte it hands out unfilled now and then.
_M_PERTURB, _PERTURBS = -6, 0x100


class Mapped:
    """Memory that the judge shares, mapped: its file, which only grows, so that tensors on an older mapping stay valid,
    and its device memory, where it has some, which is another block from time to time."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = 0
        self.memory = _empty(0, dtype=torch.uint8)
        self.on_device: torch.Tensor | None = None
        self._driver: Driver | None = None
        self._block: Block | None = None
        self._ends = {False: 0, True: 0}

    def map(self, device: torch.device, descriptor: int | None, size: int) -> None:
        """Have the judge's block of ``size`` bytes as device memory, or none, instead of the one before. The device's
        work on that has ended. Raises DriverError, and has none then."""
        self.on_device = None
        if self._block is not None and self._driver is not None:
            self._driver.unmap(self._block)
            self._block = None
        if descriptor is not None:
            self._driver = self._driver or Driver()
            self._block = self._driver.imported(device.index or 0, descriptor, size)
            self.on_device = self._block.tensor(device)

    def rewind(self) -> None:
        """Begin anew with `place`."""
        self._ends = {False: 0, True: 0}

    def place(self, size: int, device: torch.device) -> int:
        """Where the next ``size`` bytes from ``device`` go: into memory there, as far as that goes."""
        there = self.on_device
        on_device = there is not None and device == there.device and aligned(self._ends[True]) + size <= len(there)
        at = aligned(self._ends[on_device])
        self._ends[on_device] = at + size
        return ON_DEVICE + at if on_device else at

    def bytes(self, at: int, count: int) -> torch.Tensor:
        """``count`` bytes from ``at`` on as a uint8 tensor that shares its bytes."""
        if at >= ON_DEVICE:
            at -= ON_DEVICE
            if self.on_device is None or at + count > len(self.on_device):
                raise EOFError(f"the shared memory has no {at + count} bytes of device memory")
            return self.on_device[at:at + count]
        if at + count > self.size:
            self.size = os.fstat(self.descriptor).st_size
            self.memory = _frombuffer(mmap.mmap(self.descriptor, self.size), dtype=torch.uint8)
        if at + count > self.size:
            raise EOFError(f"the shared memory has {self.size} bytes, not {at + count}")
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
            perturb(_M_PERTURB, _PERTURBS | pattern ^ 0xFF)
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


def _map(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Another block of device memory to share; none where no descriptor came with the request."""
    session.place.synchronize()
    shared = {"inputs": session.inputs, "outputs": session.outputs}[payload["memory"]]
    shared.map(session.place.device, session.descriptors[0] if session.descriptors else None, payload["bytes"])
    if shared.on_device is not None:
        shared.on_device[-1].item()  # what cannot be read is seen here, and not in a call
    if payload["empty"] and session.place.cuda:
        session.kept.clear()
        _empty_cache()
    return {}


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {"map": _map}
