"""TIME's clocks: the time of one call on cold caches, on a CPU and on a CUDA device.

On CUDA every call stands between two events on the current stream. Before it the second-level cache is
overwritten and a short delay is put on the stream, so that the host is ahead when the call's first kernel may
start: what is measured is the device's time. Work that a call leaves on other streams is looked for in a call of its
own. On the CPU the clock is `time.perf_counter` and the cache flush writes twice the last-level cache; it also notes
how long threads waited for processors during a call. A device's own time has no such waits in it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kernelwright import processors
from kernelwright.roofline.devices import last_level_cache_bytes

#: The longest device-side delay, and the assumed clock of the counter behind it.
LONGEST_DELAY_SECONDS = 0.02
DELAY_CLOCK_HERTZ = 2.0e9


class CpuClock:
    """Wall clock of calls that return when they are done."""

    def __init__(self, flush_cache: bool = True) -> None:
        self.buffer = torch.zeros(flush_bytes() // 4, dtype=torch.float32) if flush_cache else None
        self.waited = 0.0

    def once(self, function: Callable[[], object], delay: float = 0.0) -> float:
        """Seconds of one call on flushed caches; ``delay`` has no meaning here. ``waited`` is then the longest that
        one thread waited for a processor meanwhile."""
        if self.buffer is not None:
            self.buffer.add_(1.0)
            self.buffer.sum()
        before = processors.waits()
        started = time.perf_counter()
        kept = function()
        seconds = time.perf_counter() - started
        self.waited = processors.longest_wait(before, processors.waits())
        del kept
        return seconds

    def finish(self) -> None:
        """Nothing is outstanding on a CPU."""

    def elsewhere(self, function: Callable[[], object]) -> float:
        """A CPU has no other streams."""
        return 0.0


class CudaClock:
    """Events on the current stream of ``device``."""

    #: Of the device's own time.
    waited = 0.0

    def __init__(self, device: torch.device, flush_cache: bool = True) -> None:
        self.device = device
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or 0
        size = max(256 << 20, 2 * cache)
        self.buffer = torch.empty(size // 4, dtype=torch.int32, device=device) if flush_cache else None
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def once(self, function: Callable[[], object], delay: float = 0.0) -> float:
        """Device seconds of one call on a flushed cache, the host ahead by ``delay`` seconds or more."""
        torch.cuda.synchronize(self.device)
        if self.buffer is not None:
            # Written, then read: the writing evicts what the last call left, the reading leaves clean lines,
            # so that the call is not charged for writing our buffer back to memory.
            self.buffer.zero_()
            self.buffer.max()
        if delay > 0:
            torch.cuda._sleep(int(min(delay, LONGEST_DELAY_SECONDS) * DELAY_CLOCK_HERTZ))
        self.start.record()
        kept = function()
        self.end.record()
        self.end.synchronize()
        seconds = self.start.elapsed_time(self.end) * 1e-3
        del kept
        return seconds

    def finish(self) -> None:
        """Wait for the whole device; raises RuntimeError where an earlier kernel failed."""
        torch.cuda.synchronize(self.device)

    def elsewhere(self, function: Callable[[], object]) -> float:
        """Seconds that the device goes on after the call's end on the current stream."""
        torch.cuda.synchronize(self.device)
        kept = function()
        self.end.record()
        self.end.synchronize()
        started = time.perf_counter()
        torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - started
        del kept
        return seconds if seconds > 5e-5 else 0.0


def flush_bytes() -> int:
    """Bytes to write on a CPU so that nothing older stays cached: twice the last cache, 64 to 1024 MB."""
    return min(1 << 30, max(64 << 20, 2 * last_level_cache_bytes()))


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect what is young now, and nothing while measuring. Around many short measurements it saves each of them the
    collecting. To look at all objects of a process takes half a second beside PyTorch and what it imports, as long as
    the measurement: what has long been there has its turn when the collector comes to it."""
    enabled = gc.isenabled()
    if enabled:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
