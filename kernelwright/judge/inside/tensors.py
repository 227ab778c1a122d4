"""Tensors as raw bytes: what storages and views the two processes tell each other. Used by both.

A manifest is plain data. ``storages`` lists blocks of bytes, ``tensors`` the views of them; a tensor names its storage
by number, its dtype by the name below, its shape and stride, and its offset in elements. Two tensors of one storage
share memory on both sides.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64,
                  torch.complex128, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: Storages begin at multiples of this many bytes in shared memory, as allocators place them.
ALIGNMENT = 512
#: Places from here on lie in the shared device memory, those before in its file.
ON_DEVICE = 1 << 60

# The worker holds these before the candidate's code runs, so that no later assignment to torch.Tensor changes them.
_storage, _data_ptr, _set = torch.Tensor.untyped_storage, torch.UntypedStorage.data_ptr, torch.Tensor.set_
_nbytes, _numel = torch.UntypedStorage.nbytes, torch.Tensor.numel
_size, _stride = torch.Tensor.size, torch.Tensor.stride
_offset, _element_size, _empty = torch.Tensor.storage_offset, torch.Tensor.element_size, torch.empty
_dtype = torch._C.TensorBase.dtype.__get__  # pyrefly: ignore[missing-attribute]  # the stubs have a value for this descriptor
_device = torch._C.TensorBase.device.__get__
_resolve_conj, _resolve_neg = torch.Tensor.resolve_conj, torch.Tensor.resolve_neg
_view, _reshape, _sum = torch.Tensor.view, torch.Tensor.reshape, torch.sum
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def aligned(position: int) -> int:
    """The next place at which a storage may begin."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def whole(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of a storage as a uint8 tensor of shape (bytes,) that shares its memory."""
    return _set(_empty(0, dtype=torch.uint8, device=storage.device), storage, 0, (_nbytes(storage),), (1,))


def view(storage: torch.UntypedStorage, entry: dict[str, Any]) -> torch.Tensor:
    """The tensor of a manifest's ``entry`` on ``storage``. Raises RuntimeError where it leaves the storage."""
    dtype = DTYPES[entry["dtype"]]
    return _set(_empty(0, dtype=dtype, device=storage.device), storage, entry["offset"], tuple(entry["shape"]),
                tuple(entry["stride"]))


def extent(entry: dict[str, Any]) -> tuple[int, int]:
    """First byte and end of what a tensor's entry covers in its storage; an empty tensor covers nothing."""
    size = DTYPES[entry["dtype"]].itemsize
    if 0 in entry["shape"]:
        return entry["offset"] * size, entry["offset"] * size
    last = entry["offset"] + sum((n - 1) * s for n, s in zip(entry["shape"], entry["stride"], strict=True))
    return entry["offset"] * size, (last + 1) * size


def entry_of(tensor: torch.Tensor) -> dict[str, Any]:
    """dtype, shape, stride and offset of a strided tensor; its storage is not named yet."""
    return {"dtype": NAMES[_dtype(tensor)], "shape": list(_size(tensor)), "stride": list(_stride(tensor)),
            "offset": _offset(tensor)}


def plain_bits(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without the lazy conjugation and negation that views of complex numbers may carry."""
    return _resolve_neg(_resolve_conj(tensor))


class Packer:
    """Collects tensors with their storages, each storage once."""

    def __init__(self) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self.tensors: list[torch.Tensor] = []
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, int, int], int] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """Take in a strided tensor; its number in the manifest. Raises KeyError for a dtype that has no name."""
        tensor = plain_bits(tensor)
        storage = _storage(tensor)
        key = (str(storage.device), _data_ptr(storage), _nbytes(storage))
        if key[1] == 0 or key not in self._numbers:  # empty storages have no address, and share nothing
            self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        self.entries.append({**entry_of(tensor), "storage": self._numbers[key]})
        self.tensors.append(tensor)
        return len(self.entries) - 1


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a contiguous tensor's bits as integers of its own width, modulo 2^64, as a number on its device."""
    width = min(8, _element_size(tensor))
    integers = _view(_reshape(tensor, (-1,)), torch.uint8)
    return _sum(_view(integers, _INTEGERS[width]), dtype=torch.int64)


def as_memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, without a copy; the tensor lives as long as they do."""
    size = _numel(tensor) * _element_size(tensor)
    if not size:
        return memoryview(b"")
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.tensor = tensor  # pyrefly: ignore[missing-attribute]  # to be kept alive, which any attribute does
    return memoryview(array).cast("B")
