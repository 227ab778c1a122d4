"""What the machine gives a worker: its device, compilers' settings, threads, and memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from pathlib import Path

import torch

from kernelwright.judge.sandbox import process_tree


def overrides(device: torch.device, cuda_visible: str | None) -> dict[str, str]:
    """Variables by which the worker differs from the judge: its device, as many threads, few compilers at once."""
    threads = str(torch.get_num_threads())
    visible = "" if device.type != "cuda" else cuda_visible if cuda_visible is not None else _visible(device)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "MAX_JOBS": "2",
            "TORCH_CUDA_ARCH_LIST": architecture(device), "CUDA_VISIBLE_DEVICES": visible}


def architecture(device: torch.device) -> str:
    """The device's architecture as PyTorch's extensions want it, with the features of that architecture alone."""
    if device.type != "cuda":
        return "9.0a"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}" + ("a" if major >= 9 else "")


def _visible(device: torch.device) -> str:
    """What CUDA_VISIBLE_DEVICES must be so that ``device`` alone is seen."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return given[index] if index < len(given) else str(index)


def proportional_bytes(leader: int) -> int:
    """Memory of all under ``leader``, where what several of them share (after a fork) counts once."""
    total = 0
    for process in process_tree.members(leader):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{process.number}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def oom_kills() -> int:
    """How many processes the system has ended so far because memory had run out; 0 where it does not say."""
    count = 0
    for file in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError, ValueError):
            count += sum(int(line.split()[1]) for line in Path(file).read_text().splitlines()
                         if line.startswith("oom_kill "))
    return count


def free_bytes() -> int:
    """Memory that can still be allocated."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def handout_seconds(size: int) -> float:
    """Seconds in which the system hands out ``size`` bytes to who writes them for the first time: the least of three,
    less what writing them again takes."""
    measured = min(size, 64 << 20)
    if measured < mmap.PAGESIZE:
        return 0.0
    taken: list[float] = []
    for _ in range(3):
        pages = torch.frombuffer(mmap.mmap(-1, measured), dtype=torch.uint8)[::mmap.PAGESIZE]
        begun = time.perf_counter()
        pages.fill_(1)
        first = time.perf_counter()
        pages.fill_(2)
        taken.append((first - begun) - (time.perf_counter() - first))
    return max(0.0, min(taken)) * size / measured
