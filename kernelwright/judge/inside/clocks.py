"""The clocks beside the timed calls: the processor's on a CPU, events on a GPU; and the flush of caches before a call.

All functions are bound when this module is imported, before the candidate.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch
from inside.device import _cuda_runtime

_clock = time.perf_counter
_add, _sum, _zero, _max = torch.Tensor.add_, torch.Tensor.sum, torch.Tensor.zero_, torch.Tensor.max
_Event: Any = getattr(torch._C, "_CudaEventBase", torch.cuda.Event)
_join, _set_stream, _default_stream = torch.cuda.synchronize, torch.cuda.set_stream, torch.cuda.default_stream
_PERSISTING_LIMIT = 0x06  # cudaLimitPersistingL2CacheSize


class Processor:
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


class Graphics:
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
