"""Measuring a device's peaks: bandwidths, matrix products, launches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from kernelwright.roofline.devices import Device, device_from_properties, last_level_cache_bytes, named_device


def memory_bytes() -> int:
    """Bytes of this machine's memory; a guess where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def _best(function: Callable[[], object], seconds: float, least: int = 2) -> float:
    """Seconds of the fastest of at least ``least`` calls, as many as fit ``seconds``."""
    function()
    best = float("inf")
    end = time.perf_counter() + seconds
    count = 0
    while count < least or time.perf_counter() < end:
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
        count += 1
    return max(best, 1e-9)


def _cpu_bandwidths(size: int) -> tuple[float, float]:
    """(bytes read per second, bytes copied per second counting both ways) over buffers of ``size`` bytes."""
    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    read = max(size / _best(lambda: source.max(), 0.15), size / _best(lambda: source.sum(), 0.15))
    return read, 2 * size / _best(lambda: target.copy_(source), 0.15)


@torch.no_grad()
def measure_cpu(name: str, threads: int) -> Device:
    """Measure the CPU's peaks with PyTorch's threads in less than two seconds."""
    cache = last_level_cache_bytes()
    size = min(max(128 << 20, 4 * cache), 512 << 20, max(16 << 20, memory_bytes() // 16))
    read, copy = _cpu_bandwidths(size)

    def product(dtype: torch.dtype, order: int, seconds: float) -> float:
        left, right = torch.ones(order, order, dtype=dtype), torch.ones(order, order, dtype=dtype)
        out = torch.empty(order, order, dtype=dtype)
        return 2 * order**3 / _best(lambda: torch.mm(left, right, out=out), seconds)

    float32 = product(torch.float32, 1024, 0.25)
    float64 = product(torch.float64, 768, 0.15)
    # Half precisions are much slower without special instructions: a small product, rarely repeated.
    bfloat16, float16 = product(torch.bfloat16, 256, 0.02), product(torch.float16, 256, 0.02)
    # The smallest loop that PyTorch divides among its threads, less the work in it.
    loop = torch.zeros(32768 * max(2, threads))
    work = loop.numel() * 8 / max(read, copy) / 4
    loop_seconds = _best(lambda: loop.add_(1.0), 0.05, least=30)
    # Above a tenth of a millisecond it is other processes that were measured.
    launch = min(max(1e-6, loop_seconds - work), 1e-4) if threads > 1 else 1e-6
    return Device(
        name=name,
        kind="cpu",
        # What no honest time beats needs a margin over what a good loop was seen to reach.
        memory_peak=1.1 * max(read, copy),
        read=read,
        copy=copy,
        float32=float32,
        float32_matmul=float32,
        tf32=float32,
        float16=float16,
        bfloat16=bfloat16,
        float64=float64,
        float64_matmul=float64,
        launch_seconds=launch,
        cores=threads,
        cache_bytes=cache,
        source=f"measured with {threads} threads and torch {torch.__version__}",
    )


@torch.no_grad()
def measure_cuda(index: int) -> Device:
    """Measure a GPU's bandwidths and matrix products; what is not measured is estimated or from its row."""
    properties = torch.cuda.get_device_properties(index)
    base = named_device(properties.name) or device_from_properties(properties)
    device = torch.device("cuda", index)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def seconds(function: Callable[[], object], count: int = 10) -> float:
        best = float("inf")
        for _ in range(2):
            function()
        for _ in range(count):
            start.record()
            function()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) * 1e-3)
        return best

    def bandwidths(size: int) -> tuple[float, float]:
        source = torch.ones(size // 4 // 4096, 4096, device=device)
        target = torch.empty_like(source)
        touched = source.numel() * 4
        return touched / seconds(lambda: source.sum(1)), 2 * touched / seconds(lambda: target.copy_(source))

    with torch.cuda.device(device):
        free, _ = torch.cuda.mem_get_info(device)
        size = int(min(1 << 30, free // 8))
        read, copy = bandwidths(size)

        def product(dtype: torch.dtype, order: int) -> float:
            left = torch.randn(order, order, device=device).to(dtype)
            right = torch.randn(order, order, device=device).to(dtype)
            return 2 * order**3 / seconds(lambda: torch.mm(left, right), 5)

        allowed = torch.backends.cuda.matmul.allow_tf32
        try:
            torch.backends.cuda.matmul.allow_tf32 = False
            float32 = product(torch.float32, 4096)
            torch.backends.cuda.matmul.allow_tf32 = True
            tf32 = product(torch.float32, 8192)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
        half, brain = product(torch.float16, 8192), product(torch.bfloat16, 8192)
        double = product(torch.float64, 2048)
        tiny = torch.zeros(1, device=device)
        launch = max(1e-6, seconds(lambda: tiny.add_(1.0), 50))
    return replace(
        base,
        memory_peak=max(base.memory_peak, read, copy),
        read=read,
        copy=copy,
        float32_matmul=float32,
        float32=max(base.float32, float32),
        tf32=tf32,
        float16=half,
        bfloat16=brain,
        float64_matmul=double,
        launch_seconds=min(launch, base.launch_seconds),
        source=f"measured with torch {torch.__version__}",
    )
