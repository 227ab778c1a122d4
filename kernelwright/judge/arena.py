"""Shared memory between judge and worker: an anonymous file that both hold, and tensors packed into it.

The worker maps the file. The judge only reads and writes it as a file, so nothing that the worker does to it can raise
a signal in the judge, and what the judge has read no longer changes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Any

import torch

from kernelwright.judge.inside.tensors import Packer, aligned, as_memory, whole

#: A memory above this is handed back to the system after use.
KEEP_BYTES = 256 << 20
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK = 1033, 1, 2
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


class Arena:
    """An anonymous file of bytes. ``descriptor`` is to be handed to the worker."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_SEAL)
        self.bytes = 0

    def reserve(self, size: int) -> None:
        """Make the file at least ``size`` bytes long. Pages that nobody writes take no memory."""
        if size > self.bytes:
            os.ftruncate(self.descriptor, size)
            self.bytes = size

    def pack(self, packer: Packer, at: int = 0) -> list[list[int]]:
        """Write the packer's storages from byte ``at`` on; return [begin, bytes] for each."""
        places = []
        for storage in packer.storages:
            at = aligned(at)
            places.append([at, storage.nbytes()])
            at += storage.nbytes()
        self.reserve(at)
        for storage, (begin, _) in zip(packer.storages, places, strict=True):
            self.write(begin, whole(storage))
        return places

    def write(self, at: int, tensor: torch.Tensor) -> None:
        """Write a contiguous tensor's bytes, from any device."""
        memory = as_memory(tensor.cpu())
        while len(memory):
            done = os.pwrite(self.descriptor, memory[:1 << 30], at)
            memory, at = memory[done:], at + done

    def read(self, at: int, tensor: torch.Tensor) -> None:
        """Fill a contiguous CPU tensor with the bytes from ``at`` on. Raises EOFError where the file ends before."""
        memory = as_memory(tensor)
        while len(memory):
            done = os.preadv(self.descriptor, [memory[:1 << 30]], at)
            if done == 0:
                raise EOFError("the arena is shorter than what is read from it")
            memory, at = memory[done:], at + done

    def release(self) -> None:
        """Hand the memory beyond `KEEP_BYTES` back; contents there become zeros."""
        if self.bytes > KEEP_BYTES:
            _punch(self.descriptor, KEEP_BYTES, self.bytes - KEEP_BYTES)

    def close(self) -> None:
        """Close the judge's end."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _punch(descriptor: int, begin: int, size: int) -> None:
    library: Any = ctypes.CDLL(None, use_errno=True)
    library.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size))
