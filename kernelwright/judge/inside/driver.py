"""Device memory that two processes map, by CUDA's driver: used by both.

A block is physical memory of its own (cuMemCreate), in whole pages of the device, and another process maps the same
memory through a file descriptor. Each process has it at an address of its own, for as long as it maps it.

Source: CUDA Driver API, "Virtual Memory Management"; layouts and numbers as in cuda.h of CUDA 11.2 to 13.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

_PINNED, _ON_DEVICE, _BY_DESCRIPTOR, _RECOMMENDED, _READ_AND_WRITE = 1, 1, 1, 1, 3
_OUT_OF_MEMORY = 2
_empty, _set = torch.empty, torch.Tensor.set_
_storage_at = getattr(torch._C, "_construct_storage_from_data_pointer", None)


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location),
                ("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class DriverError(Exception):
    """A call of the driver failed, or there is no driver. ``out_of_memory``: for want of device memory."""

    def __init__(self, message: str, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


@dataclass(frozen=True, slots=True)
class Block:
    """Device memory mapped into this process: its address here, and its bytes."""

    address: int
    bytes: int

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The block as a uint8 tensor on ``device`` (with its number). It owns nothing: it must not be used after
        `Driver.unmap`. Raises DriverError where PyTorch makes no tensor of an address."""
        if _storage_at is None:
            raise DriverError("this PyTorch makes no tensor of an address")
        storage = _storage_at(self.address, device, self.bytes)
        return _set(_empty(0, dtype=torch.uint8, device=device), storage, 0, (self.bytes,), (1,))


class Driver:
    """The driver's library, loaded. Every call needs a context of the device; ``device`` is the driver's number of it.

    Raises DriverError, as every method does where the driver refuses.
    """

    def __init__(self, path: str = "libcuda.so.1") -> None:
        try:
            self._library: Any = ctypes.CDLL(path)
        except OSError as error:
            raise DriverError(f"the driver cannot be loaded: {error}") from None
        self._must("cuInit", ctypes.c_uint(0))

    def create(self, device: int, size: int) -> tuple[Block, int]:
        """New memory of at least ``size`` bytes, mapped here, and a descriptor by which others map it, to be closed.

        What it contains is whatever lay there before.
        """
        properties = _Properties(_PINNED, _BY_DESCRIPTOR, _Location(_ON_DEVICE, device))
        unit, handle, descriptor = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int(-1)
        self._must("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(properties), _RECOMMENDED)
        size = -(-max(size, 1) // unit.value) * unit.value
        self._must("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties),
                   ctypes.c_uint64(0))
        try:
            block = self._mapped(handle, size, device)
            try:
                self._must("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _BY_DESCRIPTOR,
                           ctypes.c_uint64(0))
            except DriverError:
                self.unmap(block)
                raise
        finally:
            self._call("cuMemRelease", handle)  # what is mapped, or has a descriptor, stays
        return block, descriptor.value

    def imported(self, device: int, descriptor: int, size: int) -> Block:
        """Map the ``size`` bytes of another process's block. The descriptor may be closed afterwards."""
        handle = ctypes.c_uint64()
        self._must("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), _BY_DESCRIPTOR)
        try:
            return self._mapped(handle, size, device)
        finally:
            self._call("cuMemRelease", handle)

    def unmap(self, block: Block) -> None:
        """Give a block back. Nothing may use it any more: the caller has waited for the device."""
        self._call("cuMemUnmap", ctypes.c_uint64(block.address), ctypes.c_size_t(block.bytes))
        self._call("cuMemAddressFree", ctypes.c_uint64(block.address), ctypes.c_size_t(block.bytes))

    def _mapped(self, handle: ctypes.c_uint64, size: int, device: int) -> Block:
        address, count = ctypes.c_uint64(), ctypes.c_size_t(size)
        access = _Access(_Location(_ON_DEVICE, device), _READ_AND_WRITE)
        self._must("cuMemAddressReserve", ctypes.byref(address), count, ctypes.c_size_t(0), ctypes.c_uint64(0),
                   ctypes.c_uint64(0))
        try:
            self._must("cuMemMap", address, count, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
            try:
                self._must("cuMemSetAccess", address, count, ctypes.byref(access), ctypes.c_size_t(1))
            except DriverError:
                self._call("cuMemUnmap", address, count)
                raise
        except DriverError:
            self._call("cuMemAddressFree", address, count)
            raise
        return Block(address.value, size)

    def _call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, name)(*arguments))

    def _must(self, name: str, *arguments: Any) -> None:
        try:
            code = self._call(name, *arguments)
        except AttributeError:
            raise DriverError(f"the driver has no {name}") from None
        if code:
            text = ctypes.c_char_p()
            self._call("cuGetErrorName", code, ctypes.byref(text))
            said = text.value.decode(errors="replace") if text.value else f"error {code}"
            raise DriverError(f"{name}: {said}", code == _OUT_OF_MEMORY)
