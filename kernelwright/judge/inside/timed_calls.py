"""Timed calls: batches whose every call sees new contents, with what its outputs held at return.

Before each call inputs are mixed anew, freed memory of the outputs' sizes is poisoned, and caches are overwritten where
asked; after it, what stands in the outputs *at return* is copied to where the judge reads it.
All functions are bound when this module is imported, before the candidate: one that patches ``time.perf_counter`` or
``torch.cuda.Event`` patches something else. None of it is trusted: the judge has a clock of its own and compares.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from inside.clocks import Graphics, Processor
from inside.memory import Mapped, poisoned
from inside.state import build, write
from inside.structure import decode
from inside.tensors import aligned, bit_sum, entry_of, extent
from inside.variation import Exchange, tensor_leaves

_processor_seconds, _sleep = time.process_time, time.sleep
_copy, _reshape, _fill, _view = torch.Tensor.copy_, torch.Tensor.reshape, torch.Tensor.fill_, torch.Tensor.view
_equal, _empty, _detach, _seed = torch.equal, torch.empty, torch.Tensor.detach, torch.manual_seed
_contiguous, _no_grad, _times = torch.Tensor.contiguous, torch.no_grad, os.times
_storage, _data_ptr = torch.Tensor.untyped_storage, torch.UntypedStorage.data_ptr
_size, _device = torch.Tensor.size, torch._C.TensorBase.device.__get__
_dtype = torch._C.TensorBase.dtype.__get__  # pyrefly: ignore[missing-attribute]  # the stubs have a value for this descriptor
_INTEGER_POISON = 0x6B
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class _Named(dict[str, torch.Tensor]):
    """The outputs of a call that computes nothing, by path."""


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` filled with NaN, True, or a value that no label or index has."""
    dtype = _dtype(tensor)
    if dtype.is_floating_point or dtype.is_complex:
        return _fill(tensor, float("nan"))
    return _fill(tensor, True if dtype is torch.bool else _INTEGER_POISON)


def named_leaves(value: Any, root: str = "output") -> dict[str, Any]:
    """The leaves of nested outputs by path, named as `kernelwright.verify.flatten` names them."""
    found: dict[str, Any] = {}
    kind = type(value)
    if issubclass(kind, dict) and dict.__len__(value):
        for key, item in dict.items(value):
            found |= named_leaves(item, f"{root}[{key!r}]")
    elif issubclass(kind, (list, tuple)) and (list if issubclass(kind, list) else tuple).__len__(value):
        items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
        for index, item in enumerate(items):
            found |= named_leaves(item, f"{root}[{index}]")
    else:
        found[root] = value
    return found


class TimedCalls:
    """Slots with inputs, and batches of calls of a candidate on them; results stay until the next batch, as they were
    at return in ``shared``, from which the judge takes them without asking."""

    def __init__(self, candidate: Callable[..., Any], device: torch.device, shared: Mapped) -> None:
        self.candidate, self.device, self.shared = candidate, device, shared
        self.slots: dict[int, Any] = {}
        self.clock: Any = None
        self.specification: list[tuple[str, list[int], torch.dtype]] = []
        self.snapshots: list[list[torch.Tensor]] = []
        self.kept: list[list[torch.Tensor | None]] = []
        self.preset: dict[str, torch.Tensor] = {}
        self.taken: list[torch.Tensor] = []
        self.odd = ""

    @torch.no_grad()
    def prepare(self, slot: int, arguments: Any, keep: bool) -> None:
        """Put fresh inputs into a slot: at the addresses that it has (``keep``), or at new ones."""
        self.kept = []
        present = self.slots.get(slot)
        if keep and present is not None:
            for target, source in zip(tensor_leaves(present), tensor_leaves(arguments), strict=True):
                _copy(target, source)
        else:
            self.slots[slot] = arguments

    def forget(self) -> dict[str, Any]:
        """Let go of the last batch's outputs, so that the next does not pay for that."""
        self.kept, self.taken = [], []
        return {}

    def time(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Run a batch. ``calls`` are [slot, slot to exchange with, offset, few, seed or None], by `Exchange` of
        ``varied`` and ``key``; ``outputs`` are [path, shape, dtype], which go into shared memory from ``at`` on, call
        by call; ``flush`` is a number of passes over ``flush_bytes`` (0: warm), ``poison`` says whether freed memory is
        poisoned; ``fill`` is null, or how all memory that is handed out is filled (`poisoned`), where nothing is
        timed; ``null`` calls nothing.

        Told are, per call, seconds by this clock, seconds until the host went on, seconds that other streams went on
        after this one, and seconds of processor time.
        """
        calls, passes = payload["calls"], payload["flush"]
        exchange = Exchange(payload["varied"], payload["key"])
        self._begin(payload, len(calls))
        blocks = self.specification * 2 if payload["poison"] else []
        reply: dict[str, Any] = {"seconds": [], "issued": [], "left": [], "processor": []}
        call = self._nothing if payload["null"] else self.candidate
        collecting = gc.isenabled()
        gc.disable()
        try:
            with _no_grad(), poisoned(payload["fill"], self.device):
                self.clock.join()
                for number, (slot, other, offset, few, seed) in enumerate(calls):
                    arguments = self.slots[slot]
                    exchange(arguments, self.slots[other], offset, few)
                    freed = [poison(_empty(shape, dtype=dtype, device=self.device)) for _, shape, dtype in blocks]
                    if passes:
                        self.clock.flush(passes)
                    if seed is not None:
                        _seed(seed)
                    freed.clear()  # only now, so that nothing else gets the poisoned blocks
                    processor = _used_seconds()
                    seconds, issued, left = self.clock.call(
                        lambda a=arguments: call(*a), lambda made, n=number: self._keep(n, made))
                    for name, value in (("seconds", seconds), ("issued", issued), ("left", left),
                                        ("processor", _used_seconds() - processor)):
                        reply[name].append(float(value))
                self.clock.join()
        finally:
            if collecting:
                gc.enable()
        return {**reply, "odd": self.odd}

    def _begin(self, payload: dict[str, Any], count: int) -> None:
        self.forget()
        self.odd = ""
        specification = [(path, list(shape), getattr(torch, dtype)) for path, shape, dtype in payload["outputs"]]
        if specification != self.specification:
            self.specification = specification
            self.preset = {path: _fill(_empty(shape, dtype=dtype, device=self.device), 0)
                           for path, shape, dtype in specification}
        at, self.snapshots = payload["at"], []
        for _ in range(count):
            self.snapshots.append([])
            for _, shape, dtype in specification:
                size = math.prod(shape) * dtype.itemsize
                self.snapshots[-1].append(_reshape(_view(self.shared.bytes(at, size), dtype), shape))
                at = aligned(at + size)
        if self.clock is None:
            size = payload["flush_bytes"]
            self.clock = Graphics(self.device, size) if self.device.type == "cuda" else Processor(size)

    def _nothing(self, *_: Any) -> dict[str, torch.Tensor]:
        """What a call returns that computes nothing. It takes as much of the freed memory as any other, and on a CPU
        writes it, so that what comes after it has as much to do: finds other memory in caches."""
        made = [_empty(shape, dtype=dtype, device=self.device) for _, shape, dtype in self.specification]
        self.taken += made
        if self.device.type != "cpu":
            return self.preset
        for written, source in zip(made, self.preset.values(), strict=True):
            _copy(written, source)
        return _Named(zip(self.preset, made, strict=True))

    def _keep(self, number: int, made: Any) -> None:
        """Copy what the outputs hold now; one of another kind, shape or dtype than announced leaves poison."""
        found = made if made is self.preset or type(made) is _Named else named_leaves(made)
        kept: list[torch.Tensor | None] = []
        for place, (path, shape, dtype) in enumerate(self.specification):
            leaf: Any = found.get(path)
            if type(leaf) in _TENSORS and list(_size(leaf)) == shape and _dtype(leaf) is dtype \
                    and _device(leaf).type == self.device.type:
                own = _detach(leaf)
                kept.append(own)
                _copy(self.snapshots[number][place], own)
            else:
                what = f"{list(_size(leaf))}, {_dtype(leaf)} on {_device(leaf).type}" if type(leaf) in _TENSORS \
                    else type(leaf).__name__
                wanted = f"{shape}, {dtype} on {self.device.type}"
                self.odd = self.odd or f"{path} of call {number + 1} is {what[:90]}, the model's {wanted[:90]}"
                poison(self.snapshots[number][place])
                kept.append(None)
        self.kept.append(kept)

    @torch.no_grad()
    def look(self) -> dict[str, Any]:
        """What the last batch left: sums of the bits of every slot's tensors, and whether outputs lie in the memory of
        inputs (``in_inputs``), or of another call's outputs (``again``)."""
        left = [[int(bit_sum(t)) for t in tensor_leaves(slot)] for _, slot in sorted(self.slots.items())]
        inputs = {_data_ptr(_storage(t)) for slot in self.slots.values() for t in tensor_leaves(slot)} - {0}
        starts, covered = set(), []
        for kept in self.kept:
            own: dict[int, tuple[int, int]] = {}  # what a call's outputs cover of each memory, which they may share
            for tensor in (t for t in kept if t is not None and t.numel()):
                start = _data_ptr(_storage(tensor))
                begin, end = extent(entry_of(tensor))
                before = own.get(start, (start + begin, start + end))
                own[start] = min(before[0], start + begin), max(before[1], start + end)
            starts |= own.keys()
            covered += own.values()
        covered.sort()
        return {"left": left, "in_inputs": bool(starts & inputs),
                "again": any(second[0] < first[1] for first, second in pairwise(covered))}

    @torch.no_grad()
    def late(self, grace: float) -> dict[str, Any]:
        """Calls of the last batch whose outputs now hold other bytes than at return: at once, and ``grace`` seconds
        later, in which nothing is called."""
        first = self._changed()
        _sleep(grace)
        return {"changed": first, "changed_after": self._changed()}

    def _changed(self) -> list[int]:
        self.clock.join()
        return [number for number, kept in enumerate(self.kept)
                if any(now is not None and not _same_bits(now, then)
                       for now, then in zip(kept, self.snapshots[number], strict=True))]


def _used_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    times = _times()
    return _processor_seconds() + times.children_user + times.children_system


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if _equal(left, right):
        return True
    return _equal(*(_view(_reshape(_contiguous(t), (-1,)), torch.uint8) for t in (left, right)))


def timed_calls(session: Any) -> TimedCalls:
    """The timed calls of the session's candidate; a new candidate begins anew."""
    found = getattr(session, "timed", None)
    if found is None or found.candidate is not session.candidate:
        found = session.timed = TimedCalls(session.candidate, session.place.device, session.outputs)
    return found


def _prepare(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Write state by path, where there is some, and a slot's inputs, where there are some."""
    _, tensors = build(payload["storages"], payload["tensors"], session.inputs, session.place.device)
    values = lambda data: decode(data, tensors.__getitem__, lambda name: None)  # noqa: E731
    if payload["training"] is not None:
        session.switch(payload["training"])
    if payload["state"]:
        write(session.candidate, payload["state"], values)
    if payload["slot"] is not None:
        timed_calls(session).prepare(payload["slot"], values(payload["inputs"]), payload["keep"])
    return {}


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "prepare": _prepare, "forget": lambda session, payload: timed_calls(session).forget(),
    "look": lambda session, payload: timed_calls(session).look(),
    "time": lambda session, payload: timed_calls(session).time(payload),
    "late": lambda session, payload: timed_calls(session).late(payload["grace"])}
