"""Shared memory between judge and worker: an anonymous file that both hold, and tensors packed into it.

The worker maps the file. The judge only reads and writes it as a file, so nothing that the worker does to it can raise
a signal in the judge, and what the judge has read no longer changes. On a GPU there may be device memory beside the
file (`device_memory.py`), in which tensors there travel without passing through the host.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernelwright.judge.inside.tensors import ON_DEVICE, Packer, aligned, as_memory, whole
from kernelwright.judge.worker.device_memory import DeviceMemory

#: A memory above this is handed back to the system after use.
KEEP_BYTES = 256 << 20
#: Bytes that pass between a device and the file at once.
STAGE_BYTES = 64 << 20
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK = 1033, 1, 2
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


class SharedMemory:
    """An anonymous file of bytes, of which ``descriptor`` is to be handed to the worker, and ``device_memory`` beside
    it, or None. Places from `ON_DEVICE` on lie in the latter."""

    def __init__(self, name: str, device_memory: DeviceMemory | None = None) -> None:
        self.name, self.device_memory = name, device_memory
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_SEAL)
        self.bytes = 0

    def reserve(self, size: int) -> None:
        """Make the file at least ``size`` bytes long. Pages that nobody writes take no memory."""
        if size > self.bytes:
            os.ftruncate(self.descriptor, size)
            self.bytes = size

    def holds(self, at: int, size: int) -> bool:
        """Whether ``size`` bytes from ``at`` on lie within it."""
        if at >= ON_DEVICE:
            return self.device_memory is not None and at - ON_DEVICE + size <= self.device_memory.bytes
        return at + size <= self.bytes

    def device_bytes(self, packer: Packer) -> int:
        """Bytes of device memory that the packer's storages want."""
        there = None if self.device_memory is None else self.device_memory.device
        return sum(aligned(storage.nbytes()) for storage in packer.storages if storage.device == there)

    def pack(self, packer: Packer) -> list[list[int]]:
        """Write the packer's storages; return [begin, bytes] for each. Those of the device lie in device memory if
        there is room for all of them."""
        memory, wanted = self.device_memory, self.device_bytes(packer)
        there = memory.device if memory is not None and wanted <= memory.bytes else None
        places, ends = [], {True: 0, False: 0}
        for storage in packer.storages:
            on_device = storage.device == there
            at = aligned(ends[on_device])
            ends[on_device] = at + storage.nbytes()
            places.append([ON_DEVICE + at if on_device else at, storage.nbytes()])
        self.reserve(ends[False])
        for storage, (begin, _) in zip(packer.storages, places, strict=True):
            self.write(begin, whole(storage))
        if memory is not None and ends[True]:
            memory.settle()
        return places

    def write(self, at: int, tensor: torch.Tensor) -> None:
        """Write a contiguous tensor's bytes, from any device; into device memory they go on the current stream."""
        if at >= ON_DEVICE:
            self._part(at, tensor).copy_(_flat(tensor))
            return
        for begin, piece in _pieces(_flat(tensor)):
            memory = as_memory(_staged(piece).copy_(piece) if piece.device.type != "cpu" else piece)
            done = 0
            while done < len(memory):
                done += os.pwrite(self.descriptor, memory[done:], at + begin + done)

    def read(self, at: int, tensor: torch.Tensor) -> None:
        """Fill a contiguous tensor, on any device, with the bytes from ``at`` on, which have been read on return.

        Raises EOFError where the shared memory ends before.
        """
        if at >= ON_DEVICE:
            _flat(tensor).copy_(self._part(at, tensor))
            assert self.device_memory is not None  # of which that was a part
            self.device_memory.settle()
            return
        for begin, piece in _pieces(_flat(tensor)):
            here = piece if piece.device.type == "cpu" else _staged(piece)
            memory, done = as_memory(here), 0
            while done < len(memory):
                now = os.preadv(self.descriptor, [memory[done:]], at + begin + done)
                if now == 0:
                    raise EOFError("the shared memory is shorter than what is read from it")
                done += now
            if here is not piece:
                piece.copy_(here)

    def elements(self, at: int, dtype: torch.dtype, places: Sequence[int]) -> torch.Tensor:
        """The elements at ``places`` of a tensor of ``dtype`` that begins at ``at``, on the CPU.

        Raises EOFError where the shared memory ends before.
        """
        size, most = dtype.itemsize, max(places, default=-1) + 1
        if at >= ON_DEVICE:
            values = self._bytes(at, most * size).view(dtype)
            return values[torch.tensor(places, dtype=torch.int64, device=values.device)].cpu()
        found = torch.empty(len(places), dtype=dtype)
        memory = as_memory(found)
        for number, place in enumerate(places):
            if os.preadv(self.descriptor, [memory[number * size:(number + 1) * size]], at + place * size) != size:
                raise EOFError("the shared memory is shorter than what is read from it")
        return found

    def _part(self, at: int, like: torch.Tensor) -> torch.Tensor:
        return self._bytes(at, like.numel() * like.element_size())

    def _bytes(self, at: int, size: int) -> torch.Tensor:
        if self.device_memory is None:
            raise EOFError("the shared memory has no device memory")
        return self.device_memory.part(at - ON_DEVICE, size)

    def release(self) -> None:
        """Hand the memory beyond `KEEP_BYTES` back; contents there become zeros."""
        if self.bytes > KEEP_BYTES:
            _punch(self.descriptor, KEEP_BYTES, self.bytes - KEEP_BYTES)

    def close(self) -> None:
        """Close the judge's end."""
        if self.device_memory is not None:
            self.device_memory.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _pieces(flat: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """What is read or written at once: (first byte, bytes) of each. From a device, so much is staged here."""
    step = 1 << 30 if flat.device.type == "cpu" else STAGE_BYTES
    for begin in range(0, flat.numel(), step):
        yield begin, flat[begin:begin + step]


def _staged(piece: torch.Tensor) -> torch.Tensor:
    """Host memory of a piece's size from which its device copies at full speed."""
    return torch.empty(piece.numel(), dtype=torch.uint8, pin_memory=True)


def _punch(descriptor: int, begin: int, size: int) -> None:
    library: Any = ctypes.CDLL(None, use_errno=True)
    library.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size))
