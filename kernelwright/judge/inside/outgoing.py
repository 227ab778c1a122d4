"""What a call leaves, on its way to the judge: which memory it lies in, its bytes at the call's return, and later."""

from __future__ import annotations

from typing import Any

import torch
from inside.structure import type_name
from inside.tensors import DTYPES, NAMES, ON_DEVICE, entry_of, extent, plain_bits, whole

_layout = torch._C.TensorBase.layout.__get__  # pyrefly: ignore[missing-attribute]  # the stubs have a value for this descriptor
_device = torch._C.TensorBase.device.__get__
_dtype = torch._C.TensorBase.dtype.__get__  # pyrefly: ignore[missing-attribute]  # the stubs have a value for this descriptor
_detach, _storage, _contiguous = torch.Tensor.detach, torch.Tensor.untyped_storage, torch.Tensor.contiguous
_numel, _clone, _copy, _equal = torch.Tensor.numel, torch.Tensor.clone, torch.Tensor.copy_, torch.equal
_nbytes, _data_ptr = torch.UntypedStorage.nbytes, torch.UntypedStorage.data_ptr

Key = tuple[str, int, int]


class TooLarge(Exception):
    """There is more to tell than the judge takes."""


def key_of(storage: torch.UntypedStorage) -> Key:
    """What tells storages apart: device, address, size."""
    return str(storage.device), _data_ptr(storage), _nbytes(storage)


class Outgoing:
    """Tensors to be told. ``known`` are storages that the judge has, with the words by which it knows them; with
    ``takes_known`` their bytes are told as well where a tensor lies in them."""

    def __init__(self, device: torch.device, known: dict[Key, dict[str, Any]], takes_known: bool = False) -> None:
        self.device = device
        self.known = known
        self.takes_known = takes_known
        self.tensors: list[torch.Tensor] = []
        self.entries: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self.sources: list[torch.Tensor | None] = []
        self.early: list[torch.Tensor | None] = []
        self.told: dict[Key, int] = {}
        """Numbers of the known storages that are told."""

    def leaf(self, tensor: torch.Tensor) -> dict[str, Any] | None:
        """Take in a tensor; what is no plain memory here is told as an object of another type."""
        layout, device, dtype = _layout(tensor), _device(tensor), _dtype(tensor)
        if layout is not torch.strided:
            return {"o": f"{layout} tensor"}
        if device.type != "cpu" and device != self.device:
            return {"o": f"tensor on {device}"}
        if dtype not in NAMES:
            return {"o": f"tensor of {dtype}"}
        tensor = plain_bits(_detach(tensor))
        if type(tensor) is not torch.Tensor:
            return {"o": type_name(tensor)}
        if extent(entry_of(tensor))[1] > _nbytes(_storage(tensor)):
            return {"o": "tensor larger than its memory"}
        self.tensors.append(tensor)
        return {"t": len(self.tensors) - 1}

    def arrange(self, limit: int, earlier: list[list[tuple[Key, int, int]]]) -> None:
        """Decide which bytes are told. ``earlier`` says what memory the outputs of earlier calls cover.

        Raises TooLarge where that is more than ``limit`` bytes.
        """
        groups: dict[Key, list[int]] = {}
        self.entries = [entry_of(tensor) for tensor in self.tensors]
        for number, tensor in enumerate(self.tensors):
            size = _numel(tensor) * DTYPES[self.entries[number]["dtype"]].itemsize
            if size > limit:
                raise TooLarge(f"a tensor of shape {tuple(self.entries[number]['shape'])} with {size} bytes")
            key = key_of(_storage(tensor))
            low, high = extent(self.entries[number])
            there = self.known.get(key) if key[1] else None
            if there is not None and there.get("begin", 0) <= low and high <= there.get("end", key[2]):
                self.entries[number]["storage"] = position = self.known_storage(key)
                if self.takes_known:
                    self.sources[position] = whole(_storage(tensor))
                itemsize = DTYPES[self.entries[number]["dtype"]].itemsize
                self.entries[number]["offset"] -= there.get("begin", 0) // itemsize
            else:
                groups.setdefault(key if key[1] else ("", -number, 0), []).append(number)
        for key, numbers in groups.items():
            self._group(key, numbers, earlier)
        if sum(entry["bytes"] for entry in self.storages) > limit:
            raise TooLarge(f"{sum(entry['bytes'] for entry in self.storages)} bytes in all")

    def known_storage(self, key: Key) -> int:
        """The number of a storage that the judge has; its bytes are not told unless `changed`."""
        if key not in self.told:
            self.told[key] = self._append({**self.known[key], "bytes": key[2]}, None)
        return self.told[key]

    def changed(self, key: Key, storage: torch.UntypedStorage) -> None:
        """The bytes of a storage that the judge has are other ones now."""
        self.sources[self.known_storage(key)] = whole(storage)

    def _append(self, told: dict[str, Any], source: torch.Tensor | None) -> int:
        self.storages.append(told)
        self.sources.append(source)
        return len(self.storages) - 1

    def _group(self, key: Key, numbers: list[int], earlier: list[list[tuple[Key, int, int]]]) -> None:
        """Tensors on one storage that the judge does not have: only the part that they cover is told."""
        covered = [extent(self.entries[number]) for number in numbers]
        begin, end = min(low for low, _ in covered) // 16 * 16, max(high for _, high in covered)
        needed = sum(_numel(self.tensors[n]) * DTYPES[self.entries[n]["dtype"]].itemsize for n in numbers)
        if end - begin > 2 * needed + 4096:  # mostly gaps: a few columns of a large block
            for number in numbers:
                dense = _contiguous(self.tensors[number])
                self.entries[number] |= {**entry_of(dense), "storage": self._append(
                    {"of": "new", "bytes": _nbytes(_storage(dense)), "on_device": _device(dense).type != "cpu"},
                    whole(_storage(dense)))}
            return
        storage = _storage(self.tensors[numbers[0]])
        told: dict[str, Any] = {"of": "new", "bytes": end - begin, "on_device": storage.device.type != "cpu",
                                "covers": [key, begin, end]}
        for back, call in enumerate(earlier):
            for number, (other, low, high) in enumerate(call):
                if key[1] and other == key and low < end and begin < high:
                    told["earlier"] = [back, number]
        position = self._append(told, whole(storage)[begin:end])
        for number in numbers:
            entry = self.entries[number]
            entry["storage"] = position
            entry["offset"] -= begin // DTYPES[entry["dtype"]].itemsize

    def take(self, shared: Any) -> None:
        """Take the bytes as they are now, by copies on the current stream: into the shared memory. From a GPU whose
        part of that has no room they go by way of copies there, as the host must not wait."""
        for told, source in zip(self.storages, self.sources, strict=True):
            copy = None
            if source is not None:
                told["at"] = at = shared.place(told["bytes"], source.device)
                if source.device.type == "cpu" or at >= ON_DEVICE:
                    copy = _copy(shared.bytes(at, told["bytes"]), source)
                else:
                    try:
                        copy = _clone(source)
                    except torch.OutOfMemoryError:
                        copy = _copy(shared.bytes(at, told["bytes"]), source)
            self.early.append(copy)

    def send(self, shared: Any) -> None:
        """Put what was copied elsewhere into the shared memory."""
        for told, copy in zip(self.storages, self.early, strict=True):
            if copy is not None and copy.device.type != "cpu" and told["at"] < ON_DEVICE:
                _copy(shared.bytes(told["at"], told["bytes"]), copy)

    def is_late(self) -> bool:
        """Whether memory holds other bytes now than when they were taken."""
        return any(not _equal(copy.to(source.device), source) for copy, source in
                   zip(self.early, self.sources, strict=True) if copy is not None and source is not None)

    def cover(self) -> list[tuple[Key, int, int]]:
        """What memory each storage covers; one that the judge had before covers nothing."""
        return [tuple(told.get("covers", (("", 0, 0), 0, 0))) for told in self.storages]

    def manifest(self) -> dict[str, Any]:
        """storages and tensors as data."""
        storages = [{name: value for name, value in told.items() if name != "covers"} for told in self.storages]
        return {"storages": storages, "tensors": self.entries}
