"""What a worker may say: one JSON object a line, of bounded length, whose every field is checked before it is used.

Nothing is believed. What is checked here is that it can be handled: types, ranges, sizes, and that each tensor lies
within bytes that exist. Values are judged elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from kernelwright.judge.inside.structure import ANSWERS, decode
from kernelwright.judge.inside.tensors import DTYPES, extent, view, whole
from kernelwright.judge.worker.shared_memory import SharedMemory
from kernelwright.problem.memory import says_out_of_device_memory

#: Longest line of a worker, in bytes.
LONGEST_LINE = 8 << 20
_MOST_TENSORS, _MOST_DIMENSIONS, _MOST_ELEMENTS = 16384, 64, 1 << 48


class Broken(Exception):
    """The worker said what no worker says. The message completes "the candidate's process ..."."""


def parse(line: bytes, nonce: str | None) -> dict[str, Any]:
    """The object of one line, with the ``nonce`` of its request. Raises Broken."""
    try:
        message = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Broken("wrote a line that is not JSON into the judge's channel") from None
    if not isinstance(message, dict):
        raise Broken("wrote a line that is no answer into the judge's channel")
    if nonce is not None and (message.get("nonce") != nonce or type(message.get("ok")) is not bool):
        raise Broken("answered a request that the judge did not make")
    return message


def _refuse(name: str) -> None:
    raise ValueError(name)


def field(message: dict[str, Any], name: str, *kinds: type) -> Any:
    """A field of exactly one of ``kinds``, numbers finite and not negative. Raises Broken."""
    value = message.get(name)
    if type(value) not in kinds:
        raise Broken(f"sent an answer whose field {name} is {type(value).__name__}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 <= value < math.inf:
        raise Broken(f"sent an answer whose field {name} is {value}")
    return value


def texts(message: dict[str, Any], name: str, most: int = 500, longest: int = 1000) -> list[str]:
    """A list of short texts. Raises Broken."""
    found = field(message, name, list)
    if len(found) > most or not all(type(item) is str and len(item) <= longest for item in found):
        raise Broken(f"sent an answer whose field {name} is no list of texts")
    return found


def error_of(message: dict[str, Any]) -> dict[str, Any]:
    """The checked error of a reply that is not ``ok``: type, message, line, traceback, own, memory. Raises Broken."""
    error = field(message, "error", dict)
    for name in ("type", "message", "traceback"):
        field(error, name, str)
    field(error, "line", int, type(None))
    field(error, "own", str, type(None))
    field(error, "memory", bool)
    name = "".join(c for c in error["type"] if c.isalnum() or c == "_")[:80]
    if error["own"] is not None:  # the worker's own words: no-class becomes NoClass
        name = "".join(part for part in error["own"][:40].title() if part.isalnum())
    return {**{key: error[key] for key in ("message", "line", "traceback", "own", "memory")},
            "type": name if name.isidentifier() else "Exception"}


def lacked_device_memory(error: dict[str, Any]) -> bool:
    """Whether what `error_of` returned says that device memory ran out, in PyTorch or in what the candidate calls."""
    if error["type"] == "OutOfMemoryError":
        return error["memory"]
    return error["type"] in ("RuntimeError", "AcceleratorError") and says_out_of_device_memory(error["message"])


def item(items: Any, index: Any) -> Any:
    """``items[index]``. Raises Broken where there is none."""
    if type(index) is not int or not 0 <= index < len(items):
        raise Broken("named something that does not exist")
    return items[index]


def tensors(memory: Any, shared: SharedMemory, device: torch.device, limit: int,
            local: Callable[[dict[str, Any]], torch.UntypedStorage | None]
            ) -> tuple[list[torch.Tensor], list[torch.UntypedStorage]]:
    """The tensors and storages of a worker's manifest, as local memory with the bytes in ``shared``.

    ``local(told)`` gives the storage that a known one stands for (an input's, say), or None. At most ``limit`` bytes of
    new memory are made; known storages get the told bytes in place. Raises Broken.
    """
    if type(memory) is not dict:
        raise Broken("sent no manifest")
    told, entries = field(memory, "storages", list), field(memory, "tensors", list)
    if len(told) > _MOST_TENSORS or len(entries) > _MOST_TENSORS:
        raise Broken("sent more tensors than any model has")
    storages, total = [], 0
    for each in told:
        if type(each) is not dict:
            raise Broken("sent a storage that is none")
        size, at = field(each, "bytes", int), each.get("at")
        if at is not None and (type(at) is not int or at < 0 or not shared.holds(at, size)):
            raise Broken("placed a result outside of the memory that it was given")
        storage = local(each)
        if storage is None:
            total += size
            if field(each, "of", str) != "new" or at is None or total > limit:
                raise Broken("sent a result without its bytes, or more than there may be")
            on_device = each.get("on_device", device.type != "cpu") is True
            storage = _filled(shared, at, size, device if on_device else torch.device("cpu"))
        elif storage.nbytes() != size and not ("earlier" in each and storage.nbytes() > size):
            raise Broken("told another size of memory than was given to it")
        elif at is not None:
            _refill(shared, at, size, storage)
        storages.append(storage)
    return [_tensor(entry, storages, limit) for entry in entries], storages


def value(data: Any, found: list[torch.Tensor]) -> Any:
    """The nested value that ``data`` describes; objects of unknown types become `Foreign`. Raises Broken."""
    def tensor(number: int) -> torch.Tensor:
        if not 0 <= number < len(found):
            raise ValueError
        return found[number]

    try:
        return decode(data, tensor, foreign)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise Broken("described a result that cannot be read") from None


class Foreign:
    """Stands for an object that was not handed over: its type is no plain tensor, number or container."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and type(self).__name__ == type(other).__name__

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def foreign(name: str) -> Foreign:
    """The stand-in for an object of the type called ``name``, which is also its class's name."""
    answers = {"__torch_function__": None} if name.startswith(ANSWERS) else {}
    return type(name.removeprefix(ANSWERS).rpartition(".")[2][:100], (Foreign,), answers)()


def _filled(shared: SharedMemory, at: int, size: int, device: torch.device) -> torch.UntypedStorage:
    block = torch.empty(size, dtype=torch.uint8, device=device)
    _read(shared, at, block)
    return block.untyped_storage()


def _refill(shared: SharedMemory, at: int, size: int, storage: torch.UntypedStorage) -> None:
    _read(shared, at, whole(storage)[:size])


def _read(shared: SharedMemory, at: int, block: torch.Tensor) -> None:
    try:
        shared.read(at, block)
    except EOFError:
        raise Broken("placed a result outside of the memory that it was given") from None


def _tensor(entry: Any, storages: list[torch.UntypedStorage], limit: int) -> torch.Tensor:
    if type(entry) is not dict or entry.get("dtype") not in DTYPES:
        raise Broken("sent a tensor of an unknown type")
    shape, stride = field(entry, "shape", list), field(entry, "stride", list)
    number, offset = field(entry, "storage", int), field(entry, "offset", int)
    if (len(shape) != len(stride) or len(shape) > _MOST_DIMENSIONS or number >= len(storages)
            or not all(type(n) is int and 0 <= n < _MOST_ELEMENTS for n in (*shape, *stride, offset))):
        raise Broken("sent a tensor whose shape and strides are none")
    elements = math.prod(shape)
    if elements * DTYPES[entry["dtype"]].itemsize > max(limit, storages[number].nbytes()):
        raise Broken("sent a tensor of more elements than there may be")
    if elements and extent(entry)[1] > storages[number].nbytes():
        raise Broken("sent a tensor that leaves its memory")
    if not elements:
        entry = {**entry, "offset": 0}
    try:
        return view(storages[number], entry)
    except RuntimeError:
        raise Broken("sent a tensor that cannot be made") from None
