"""Timed calls: batches whose every call sees new contents, with what its outputs held at return.

Before each call, freed memory of the outputs' sizes is poisoned, the cache overwritten where asked, and a few input
elements are replaced; after it, what stands in the outputs *at return* is copied, and more of the inputs is replaced.
All functions are bound when this module is imported, before the candidate: one that patches ``time.perf_counter`` or
``torch.cuda.Event`` patches something else. None of it is trusted: the judge has a clock of its own and compares.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from inside.device import _cuda_runtime
from inside.state import build, write
from inside.structure import decode
from inside.tensors import aligned, bit_sum, whole
from inside.variation import tensor_leaves, vary

_clock, _processor_seconds, _sleep = time.perf_counter, time.process_time, time.sleep
_clone, _copy, _reshape, _fill = torch.Tensor.clone, torch.Tensor.copy_, torch.Tensor.reshape, torch.Tensor.fill_
_add, _sum, _zero, _max, _view = (torch.Tensor.add_, torch.Tensor.sum, torch.Tensor.zero_, torch.Tensor.max,
                                  torch.Tensor.view)
_equal, _empty, _detach, _seed, _stack = torch.equal, torch.empty, torch.Tensor.detach, torch.manual_seed, torch.stack
_contiguous, _no_grad, _times = torch.Tensor.contiguous, torch.no_grad, os.times
_size, _dtype, _device = torch.Tensor.size, torch._C.TensorBase.dtype.__get__, torch._C.TensorBase.device.__get__
_Event: Any = getattr(torch._C, "_CudaEventBase", torch.cuda.Event)
_join, _set_stream, _default_stream = torch.cuda.synchronize, torch.cuda.set_stream, torch.cuda.default_stream
_INTEGER_POISON = 0x6B
_PERSISTING_LIMIT = 0x06  # cudaLimitPersistingL2CacheSize


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


class _Processor:
    """The clock on a CPU, where a call's work is done when it returns."""

    def __init__(self, flush_bytes: int) -> None:
        self.buffer = torch.zeros(flush_bytes // 4, dtype=torch.float32)

    def flush(self, passes: int) -> None:
        for _ in range(passes):
            _add(self.buffer, 1.0)
            _sum(self.buffer)

    def join(self) -> None:
        """Nothing is outstanding."""

    def call(self, function: Callable[[], Any], keep: Callable[[Any], None]) -> tuple[float, float, float]:
        """Seconds, seconds until the host went on, seconds of work that went on after that."""
        started = _clock()
        result = function()
        seconds = _clock() - started
        keep(result)
        return seconds, seconds, 0.0


class _Graphics:
    """Events on the default stream of a CUDA device."""

    def __init__(self, device: torch.device, flush_bytes: int) -> None:
        self.device = device
        self.stream = _default_stream(device)
        self.buffer = torch.empty(flush_bytes // 4, dtype=torch.int32, device=device)
        self.start, self.end, self.kept = (_Event(enable_timing=True) for _ in range(3))
        self.runtime = _cuda_runtime()

    def flush(self, passes: int) -> None:
        """Overwrite the second-level cache, its persisting part too; more passes keep the device busy for longer, so
        that the host is ahead when the call's first kernel may start. (A delay of one block would do that as well, but
        leave room beside it for work that does not wait for this stream.)"""
        if self.runtime:
            self.runtime.cudaCtxResetPersistingL2Cache()
            self.runtime.cudaDeviceSetLimit(_PERSISTING_LIMIT, ctypes.c_size_t(0))
        for _ in range(passes):
            # Written, then read: the reading leaves clean lines, which the call need not write back.
            _zero(self.buffer)
            _max(self.buffer)

    def join(self) -> None:
        _join(self.device)

    def call(self, function: Callable[[], Any], keep: Callable[[Any], None]) -> tuple[float, float, float]:
        """As on a CPU. What the outputs hold is copied on this stream, before other streams are waited for."""
        _set_stream(self.stream)
        self.start.record(self.stream)
        issued = _clock()
        result = function()
        issued = _clock() - issued
        _set_stream(self.stream)
        self.end.record(self.stream)
        keep(result)
        self.kept.record(self.stream)
        self.kept.synchronize()
        left = _clock()
        _join(self.device)
        left = _clock() - left
        return self.start.elapsed_time(self.end) * 1e-3, issued, left


class TimedCalls:
    """Slots with inputs, and batches of calls of a candidate on them; results stay until the next batch."""

    def __init__(self, candidate: Callable[..., Any], device: torch.device) -> None:
        self.candidate, self.device = candidate, device
        self.slots: dict[int, Any] = {}
        self.clock: Any = None
        self.specification: list[tuple[str, list[int], torch.dtype]] = []
        self.snapshots: list[list[torch.Tensor]] = []
        self.kept: list[list[torch.Tensor | None]] = []
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
        self.kept = []
        return {}

    def time(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Run a batch. ``calls`` are [slot, donor, moves before, moves after, seed or None]; ``outputs`` are [path,
        shape, dtype]; ``flush`` is a number of passes over ``flush_bytes`` (0: warm); ``null`` calls nothing.

        Told are, per call, seconds by this clock, seconds until the host went on, seconds that other streams went on
        after this one, and seconds of processor time; and the sums of bits of every call's outputs.
        """
        calls, passes = payload["calls"], payload["flush"]
        self._begin(payload, len(calls))
        reply: dict[str, Any] = {"seconds": [], "issued": [], "left": [], "processor": []}
        call = (lambda *_: self.preset) if payload["null"] else self.candidate
        collecting = gc.isenabled()
        gc.disable()
        try:
            with _no_grad():
                self.clock.join()
                for number, (slot, donor, before, after, seed) in enumerate(calls):
                    arguments = self.slots[slot]
                    for _, shape, dtype in self.specification * 2:
                        poison(_empty(shape, dtype=dtype, device=self.device))
                    if passes:
                        self.clock.flush(passes)
                    vary(arguments, self.slots[donor], before)
                    if seed is not None:
                        _seed(seed)
                    processor = _used_seconds()
                    seconds, issued, left = self.clock.call(
                        lambda a=arguments: call(*a), lambda made, n=number: self._keep(n, made))
                    for name, value in (("seconds", seconds), ("issued", issued), ("left", left),
                                        ("processor", _used_seconds() - processor)):
                        reply[name].append(float(value))
                    vary(arguments, self.slots[donor], after)
                self.clock.join()
        finally:
            if collecting:
                gc.enable()
        return {**reply, "odd": self.odd, "sums": self._sums(len(calls))}

    def _sums(self, count: int) -> list[list[int]]:
        """What every call's outputs were at return, as one number each: told before it is known which are looked at, so
        that nothing can be computed afterwards."""
        sums = [bit_sum(block) for snapshot in self.snapshots[:count] for block in snapshot]
        told = _stack(sums).tolist() if sums else []
        width = len(self.specification)
        return [told[at * width:(at + 1) * width] for at in range(count)]

    def _begin(self, payload: dict[str, Any], count: int) -> None:
        self.forget()
        self.odd = ""
        specification = [(path, list(shape), getattr(torch, dtype)) for path, shape, dtype in payload["outputs"]]
        if specification != self.specification:
            self.specification, self.snapshots = specification, []
        while len(self.snapshots) <= count:
            self.snapshots.append([_empty(shape, dtype=dtype, device=self.device) for _, shape, dtype in specification])
        for block in (block for snapshot in self.snapshots for block in snapshot):
            _fill(block, 0)
        self.preset = {path: block for (path, _, _), block in zip(specification, self.snapshots[-1], strict=True)}
        if self.clock is None:
            size = payload["flush_bytes"]
            self.clock = _Graphics(self.device, size) if self.device.type == "cuda" else _Processor(size)

    def _keep(self, number: int, made: Any) -> None:
        """Copy what the outputs hold now; one of another kind, shape or dtype than announced leaves poison."""
        found = made if made is self.preset else named_leaves(made)
        kept: list[torch.Tensor | None] = []
        for place, (path, shape, dtype) in enumerate(self.specification):
            leaf = found.get(path)
            if type(leaf) is torch.Tensor and list(_size(leaf)) == shape and _dtype(leaf) is dtype \
                    and _device(leaf).type == self.device.type:
                kept.append(_detach(leaf))
                _copy(self.snapshots[number][place], kept[-1])
            else:
                what = f"{list(_size(leaf))}, {_dtype(leaf)}" if type(leaf) is torch.Tensor else type(leaf).__name__
                self.odd = self.odd or f"{path} of call {number + 1} is {what[:100]}"
                poison(self.snapshots[number][place])
                kept.append(None)
        self.kept.append(kept)

    @torch.no_grad()
    def fetch(self, payload: dict[str, Any]) -> list[torch.Tensor]:
        """Outputs as they were at return: the whole ones of the calls in ``whole``, then, of each output, the elements
        at flat ``positions`` (modulo its size) of every call, as (calls, positions)."""
        tensors = [block for number in payload["whole"] for block in self.snapshots[number]]
        if payload["positions"]:
            for place, block in enumerate(self.snapshots[0]):
                if block.numel():
                    index = torch.tensor(payload["positions"], device=self.device) % block.numel()
                    tensors.append(_stack([_reshape(self.snapshots[n][place], (-1,))[index]
                                           for n in range(len(self.kept))]))
        return tensors

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
        found = session.timed = TimedCalls(session.candidate, session.place.device)
    return found


def _prepare(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Write state by path, where there is some, and a slot's inputs, where there are some."""
    _, tensors = build(payload["storages"], payload["tensors"], session.inputs, session.place.device)
    values = lambda data: decode(data, tensors.__getitem__, lambda name: None)  # noqa: E731
    if payload["training"] not in (None, session.candidate.training):
        session.candidate.train(payload["training"])
    if payload["state"]:
        write(session.candidate, payload["state"], values)
    if payload["slot"] is not None:
        timed_calls(session).prepare(payload["slot"], values(payload["inputs"]), payload["keep"])
    return {}


def _fetch(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Put tensors, one after the other at aligned places, into the arena; the judge knows what they must be."""
    at, places = 0, []
    for tensor in timed_calls(session).fetch(payload):
        block = whole(_contiguous(tensor).untyped_storage())
        count = block.numel()
        _copy(session.outputs.bytes(at, count), block)
        places.append([at, count])
        at = aligned(at + count)
    return {"places": places}


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "prepare": _prepare, "fetch": _fetch, "forget": lambda session, payload: timed_calls(session).forget(),
    "time": lambda session, payload: timed_calls(session).time(payload),
    "late": lambda session, payload: timed_calls(session).late(payload["grace"])}
