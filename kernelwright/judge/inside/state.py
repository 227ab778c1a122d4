"""A candidate's state as told to the judge: parameters, buffers and plain tensor attributes by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from inside.structure import TooComplex, encode, type_name
from inside.tensors import ON_DEVICE, view, whole
from torch import nn

_FIELDS = frozenset(vars(nn.Module()))
_named_modules = nn.Module.named_modules
_equal, _clone, _copy, _detach = torch.equal, torch.Tensor.clone, torch.Tensor.copy_, torch.Tensor.detach
_synchronize = torch.cuda.synchronize


def places(module: nn.Module) -> Iterator[tuple[str, str, nn.Module, str]]:
    """Yield (kind, path, owner, name): "p" a parameter, "b" a buffer, "a" an attribute that holds plain tensors, not
    only some of the former again. A module under several names has its parameters and buffers under each, as in a
    state_dict, and its attributes under the first."""
    registered = set()
    for kind, table in (("p", "_parameters"), ("b", "_buffers")):
        for prefix, owner in list(_named_modules(module, remove_duplicate=False)):
            for name, value in owner.__dict__.get(table, {}).items():
                if value is not None:
                    registered.add(id(value))
                    yield kind, f"{prefix}.{name}" if prefix else name, owner, name
    for prefix, owner in list(_named_modules(module)):
        for name, value in list(owner.__dict__.items()):
            if name not in _FIELDS and type(value) in (torch.Tensor, list, tuple, dict) \
                    and _has_tensors(value, registered):
                yield "a", f"{prefix}.{name}" if prefix else name, owner, name


def _has_tensors(value: object, registered: set[int]) -> bool:
    """Whether a value holds tensors that are not ``registered``, by their identity."""
    found: list[bool] = []
    try:
        encode(value, _plain(lambda tensor: found.append(id(tensor) not in registered) or {"t": 0}))
    except TooComplex:  # told to nobody, as if it were an object
        return False
    return any(found)


def _plain(leaf: Callable[[torch.Tensor], dict[str, Any] | None]) -> Callable[[torch.Tensor], dict[str, Any] | None]:
    """``leaf`` for plain tensors alone: parameters in attributes are told by their type, as objects are."""
    return lambda tensor: leaf(tensor) if type(tensor) is torch.Tensor else None


def value_of(kind: str, owner: nn.Module, name: str) -> Any:
    """The value at a place."""
    if kind == "a":
        return owner.__dict__[name]
    return owner.__dict__["_parameters" if kind == "p" else "_buffers"][name]


def describe(module: nn.Module, leaf: Callable[[torch.Tensor], dict[str, Any] | None]) -> list[dict[str, Any]]:
    """All places with their values as data; tensors are told by ``leaf``, parameters and buffers as plain tensors."""
    told = []
    tied: dict[int, dict[str, Any]] = {}  # a parameter under several names is one tensor
    for kind, path, owner, name in places(module):
        value = value_of(kind, owner, name)
        entry: dict[str, Any] = {"kind": kind, "path": path}
        if kind == "a":
            entry["value"] = encode(value, _plain(leaf))
        else:
            if id(value) not in tied:
                tied[id(value)] = leaf(_detach(value)) or {"o": type_name(value)}
            entry["value"] = tied[id(value)]
            entry["type"] = type(value).__name__[:100]
            entry["grad"] = bool(value.requires_grad)
            entry["persistent"] = kind == "p" or name not in owner.__dict__.get("_non_persistent_buffers_set", ())
        told.append(entry)
    return told


@torch.no_grad()
def write(module: nn.Module, values: list[dict[str, Any]], decode: Callable[[dict[str, Any]], Any]) -> None:
    """Write the judge's values: parameters and buffers in place, attributes by replacing them."""
    there = {(kind, path): (owner, name) for kind, path, owner, name in places(module)}
    for entry in values:
        owner, name = there.get((entry["kind"], entry["path"]), (None, ""))
        if owner is None:
            continue  # it went away; the judge hears of it with the next reply
        value = decode(entry["value"])
        if entry["kind"] == "a":
            owner.__dict__[name] = value
        else:
            _copy(value_of(entry["kind"], owner, name), value)


class Snapshots:
    """Copies of storages, to see which bytes a call changed."""

    def __init__(self) -> None:
        self.copies: dict[tuple[str, int, int], torch.Tensor | None] = {}

    def keep(self, storages: dict[tuple[str, int, int], torch.UntypedStorage], fresh: bool) -> None:
        """Have a copy of each storage; those that are there stay unless ``fresh``. None where memory is short."""
        copies: dict[tuple[str, int, int], torch.Tensor | None] = {}
        for key, storage in storages.items():
            if key in self.copies and not fresh:
                copies[key] = self.copies[key]
                continue
            try:
                copies[key] = _clone(whole(storage))
            except (RuntimeError, MemoryError):
                copies[key] = None
        self.copies = copies

    def changed(self, key: tuple[str, int, int], storage: torch.UntypedStorage) -> bool:
        """Whether the bytes differ from the copy. What has no copy counts as changed, so that its bytes are told."""
        copy = self.copies.get(key)
        return copy is None or not _equal(copy, whole(storage))


def build(places: list[list[Any]], entries: list[dict[str, Any]], shared: Any, device: torch.device,
          reused: Sequence[torch.UntypedStorage] = ()) -> tuple[list[torch.UntypedStorage], list[torch.Tensor]]:
    """Storages with the judge's bytes, and the tensors on them. The first lie where ``reused`` does, if sizes and
    devices are the same; all others in fresh memory. ``shared`` is not needed any more on return."""
    storages = []
    for index, (at, count, on_device) in enumerate(places):
        block = torch.empty(count, dtype=torch.uint8, device=device if on_device else "cpu")
        if index < len(reused) and reused[index].nbytes() == count and reused[index].device == block.device:
            block = torch.empty(0, dtype=torch.uint8, device=block.device).set_(reused[index])
        if count:
            _copy(block, shared.bytes(at, count))
        storages.append(block.untyped_storage())
    if any(at >= ON_DEVICE for at, _, _ in places) and device.type == "cuda":
        _synchronize(device)
    return storages, [view(storages[entry["storage"]], entry) for entry in entries]
