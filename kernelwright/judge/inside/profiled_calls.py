"""A few calls under PyTorch's profiler: which kernels ran, and which operators of PyTorch took the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from inside.timed_calls import timed_calls

_clock, _join, _no_grad = time.perf_counter, torch.cuda.synchronize, torch.no_grad
MOST_NAMES, LONGEST_NAME = 500, 300


def profile(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Profile ``calls`` calls on slot 0: kernels on the device with [name, seconds, launches], operators of PyTorch on
    the host with [name, own seconds, calls], and the wall seconds of as many calls without the profiler."""
    from torch.profiler import ProfilerActivity, profile

    cuda, arguments = session.place.cuda, timed_calls(session).slots[0]
    join = (lambda: _join(session.place.device)) if cuda else (lambda: None)

    def run() -> float:
        join()
        started = _clock()
        for _ in range(payload["calls"]):
            session.candidate(*arguments)
        join()
        return _clock() - started

    kernels: dict[str, list[Any]] = {}
    operators: dict[str, list[Any]] = {}
    with _no_grad():
        run()
        wall = run()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiler:
            run()
    for event in profiler.events() or ():
        on_device = event.device_type != torch.autograd.DeviceType.CPU  # equal, not the same object
        microseconds = event.self_device_time_total if on_device else event.self_cpu_time_total
        entry = (kernels if on_device else operators).setdefault(str(event.name)[:LONGEST_NAME], [0.0, 0])
        entry[0] += max(0.0, float(microseconds)) * 1e-6
        entry[1] += 1
    return {"wall": wall, "kernels": _longest(kernels), "operators": _longest(operators)}


def _longest(table: dict[str, list[Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = sorted(([name, *found] for name, found in table.items()), key=lambda row: -row[1])
    return rows[:MOST_NAMES]


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {"profile": profile}
