"""The machine examined: its devices' peaks, the compilers found, and a report of both."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.roofline.devices import Device, processor_name
from kernelwright.roofline.measure import memory_bytes
from kernelwright.roofline.peaks import measured_cpu, measured_cuda
from kernelwright.settings import cache_folder


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
            lines.append(f"  launch     {device.launch_seconds * 1e6:.3g} microseconds, figures for {device.parallel}")
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
        memory_bytes=memory_bytes(),
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
