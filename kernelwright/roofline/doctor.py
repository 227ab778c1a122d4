"""The machine examined: peaks measured here, compilers found, and a report of both.

Peaks are kept in the cache folder as JSON, one file per machine, thread count and torch version. Measuring
again only ever raises them: a disturbed measurement shows less than the machine can do, never more.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernelwright.roofline.devices import (
    Device,
    device_from_properties,
    last_level_cache_bytes,
    named_device,
    processor_name,
)
from kernelwright.settings import cache_folder

#: Figures of a row that measuring may raise.
_RATES = (
    "memory_peak",
    "read",
    "copy",
    "float32",
    "float32_matmul",
    "tf32",
    "float16",
    "bfloat16",
    "float64",
    "float64_matmul",
)
_FORMAT = 1


@dataclass(frozen=True)
class Machine:
    """What `doctor` found. ``compilers`` maps a program to its version line or to "not found"; ``devices``
    are the rows of the CPU and of each GPU; ``problems`` are sentences with what to do about them."""

    torch_version: str
    cuda_version: str | None
    python_version: str
    system: str
    processor: str
    threads: int
    memory_bytes: int
    compilers: dict[str, str]
    devices: tuple[Device, ...]
    cache: str
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **{k: v for k, v in vars(self).items() if k not in ("devices", "problems")},
            "devices": [device.to_json() for device in self.devices],
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """Return a readable report, one fact a line."""
        rows = [
            ("torch", f"{self.torch_version} (CUDA {self.cuda_version or 'not built in'})"),
            ("Python", f"{self.python_version} on {self.system}"),
            ("processor", f"{self.processor}, {self.threads} threads, {self.memory_bytes / 2**30:.1f} GiB"),
            *self.compilers.items(),
            ("cache", self.cache),
        ]
        lines = [f"{name:<10} {value}" for name, value in rows]
        for device in self.devices:
            lines += ["", f"{device.name} ({device.source})"]
            lines.append(
                f"  memory     read {device.read / 1e9:.4g} GB/s, copy {device.copy / 1e9:.4g} GB/s, "
                f"last-level cache {device.cache_bytes / 2**20:.4g} MiB"
            )
            lines.append(
                f"  float32    {device.float32 / 1e9:.4g} GFLOP/s, matrix product "
                f"{device.float32_matmul / 1e9:.4g} GFLOP/s"
            )
            lines.append(
                f"  others     TF32 {device.tf32 / 1e9:.4g}, float16 {device.float16 / 1e9:.4g}, bfloat16 "
                f"{device.bfloat16 / 1e9:.4g}, float64 {device.float64_matmul / 1e9:.4g} GFLOP/s"
            )
            lines.append(f"  launch     {device.launch_seconds * 1e6:.3g} microseconds, {device.cores} cores")
        lines += [""] * bool(self.problems) + [f"problem    {problem}" for problem in self.problems]
        return "\n".join(lines)


def doctor(*, refresh: bool = False) -> Machine:
    """Examine this machine. ``refresh`` measures again instead of taking cached peaks. Raises nothing."""
    devices = [measured_cpu(refresh=refresh)]
    problems: list[str] = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            try:
                devices.append(measured_cuda(index, refresh=refresh))
            except RuntimeError as error:
                problems.append(f"GPU {index} cannot be measured: {str(error).splitlines()[0]}")
    compilers = {name: compiler_version(name) for name in ("g++", "clang++", "nvcc", "ninja")}
    if all(compilers[name] == "not found" for name in ("g++", "clang++")):
        problems.append("No C++ compiler: install g++ (Debian: apt install g++), or set CXX.")
    if torch.cuda.is_available() and compilers["nvcc"] == "not found":
        problems.append(f"No nvcc: install the CUDA toolkit {torch.version.cuda}, or set CUDA_HOME.")
    if compilers["ninja"] == "not found":
        problems.append("No ninja, which torch.utils.cpp_extension needs: pip install ninja.")
    return Machine(
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        python_version=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor_name(),
        threads=torch.get_num_threads(),
        memory_bytes=_memory_bytes(),
        compilers=compilers,
        devices=tuple(devices),
        cache=str(cache_folder()),
        problems=tuple(problems),
    )


def compiler_version(name: str) -> str:
    """Return the line with ``name``'s version and its path, or "not found"."""
    path = shutil.which(os.environ.get("CXX", name)) if name == "g++" else shutil.which(name)
    if path is None and name == "nvcc":
        homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
        path = next((str(p) for h in homes if h and (p := Path(h) / "bin" / "nvcc").is_file()), None)
    if path is None and name == "ninja":
        try:
            import ninja

            path = shutil.which("ninja", path=ninja.BIN_DIR)
        except ImportError:
            path = None
    if path is None:
        return "not found"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"does not run ({path})"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    line = next(
        (line for line in lines if re.search(r"\d+\.\d+", line)), lines[0] if lines else "version unknown"
    )
    return f"{line} ({path})"


def measured_cpu(*, refresh: bool = False) -> Device:
    """Return the CPU's row with the threads that PyTorch uses now; measured once, then cached."""
    name, threads = processor_name(), torch.get_num_threads()
    return _cached(f"cpu|{name}|{threads}|{torch.__version__}", refresh, lambda: measure_cpu(name, threads))


def measured_cuda(index: int = 0, *, refresh: bool = False) -> Device:
    """Return the row of GPU ``index``; measured once, then cached. RuntimeError where the GPU fails."""
    properties = torch.cuda.get_device_properties(index)
    key = f"cuda|{properties.name}|{torch.version.cuda}|{torch.__version__}"
    return _cached(key, refresh, lambda: measure_cuda(index))


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
    size = min(max(128 << 20, 4 * cache), 512 << 20, max(16 << 20, _memory_bytes() // 16))
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


def _cache_path(key: str) -> Path:
    return cache_folder() / "peaks" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _cached(key: str, refresh: bool, measure: Callable[[], Device]) -> Device:
    path = _cache_path(key)
    known = _load(path, key)
    if known is not None and not refresh:
        return known
    found = measure()
    if known is not None:
        raised = {rate: max(getattr(found, rate), getattr(known, rate)) for rate in _RATES}
        found = replace(found, **raised, launch_seconds=min(found.launch_seconds, known.launch_seconds))
    _store(path, key, found)
    return found


def _load(path: Path, key: str) -> Device | None:
    try:
        document = json.loads(path.read_text())
        if document.get("format") != _FORMAT or document.get("key") != key:
            return None
        return Device.from_json(document["device"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _store(path: Path, key: str, device: Device) -> None:
    """Write through a file of its own and a rename, so that no reader sees half of it. A folder that cannot
    be written only means that the next run measures again."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".peaks-", suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump({"format": _FORMAT, "key": key, "device": device.to_json()}, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30
