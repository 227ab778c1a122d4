"""The clock of the scripts that time single kernels on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable

import torch


def cold_milliseconds(work: Callable[[], object], flush: torch.Tensor, repeats: int) -> list[float]:
    """Device milliseconds of ``repeats`` calls, before each of which ``flush`` (larger than the cache) is written."""
    times = []
    for _ in range(repeats):
        flush.fill_(1)
        flush.max()  # clean lines: nothing is left to write back while we time
        torch.cuda._sleep(200000)  # keeps the device busy while the host queues the events: no launch gap is timed
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return times
