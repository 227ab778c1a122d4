"""`kernelwright doctor`: this machine examined. What it has, with the devices' measured peaks, what is missing, and
what each missing thing costs."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.build.module import find_compiler, find_cuda_compiler, find_tools
from kernelwright.codegen.generate import TARGETS
from kernelwright.errors import KernelwrightError, NinjaMissing, NoCppCompiler
from kernelwright.processors import waits
from kernelwright.report.units import scaled
from kernelwright.roofline.devices import Device, processor_name
from kernelwright.roofline.measure import memory_bytes
from kernelwright.roofline.peaks import measured_busy, measured_cpu, measured_cuda
from kernelwright.settings import HOST_TARGET, cache_folder

SCHEMA = 1
#: There where a GPU's driver is.
_DRIVER = Path("/proc/driver/nvidia")
#: Packages that a verb needs, and the extra that brings them.
_EXTRAS = {"serve": (("starlette", "uvicorn"), "kernelwright serve does not start"),
           "propose": (("openai",), "kernelwright propose asks no endpoint; it reads answers that exist"),
           "ray": (("ray",), "bench and judge --set run on this machine alone, on no Ray cluster")}


@dataclass(frozen=True, slots=True)
class Missing:
    """What this machine lacks. name: of the thing. needed: whether kernels for a device of this machine cannot be
    built without it. cost: what cannot be done. fix: how it is got, or "" where it is no matter of installing."""

    name: str
    needed: bool
    cost: str
    fix: str

    def sentence(self) -> str:
        """What it costs, and how it is got."""
        return f"{self.cost}{f'; {self.fix}' if self.fix else ''}"


@dataclass(frozen=True)
class Machine:
    """What `doctor` found. verdict: one line. compilers: the version line and the path of each program that is here.
    cache: the folder of what is kept. devices: the rows of the CPU and of each GPU. measured_busy: whether other
    programs took processors while the CPU was measured. missing: what is not here."""

    verdict: str
    torch_version: str
    cuda_version: str | None
    python_version: str
    system: str
    processor: str
    threads: int
    memory_bytes: int
    compilers: dict[str, str]
    cache: str
    devices: tuple[Device, ...]
    measured_busy: bool
    missing: tuple[Missing, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``."""
        return {"schema": SCHEMA, **vars(self),
                "devices": [device.to_json() for device in self.devices],
                "missing": [asdict(missing) for missing in self.missing]}

    def render(self, width: int = 100) -> str:
        """The report: the verdict, what is here, the figures of each device, and what is missing."""
        cuda = f"CUDA {self.cuda_version}" if self.cuda_version else "built for CPUs alone"
        rows = [("torch", f"{self.torch_version} ({cuda})"), ("Python", f"{self.python_version} on {self.system}"),
                ("processor", f"{self.processor}, {self.threads} threads, {self.memory_bytes / 2**30:.1f} GiB"),
                *self.compilers.items(), ("cache", self.cache)]
        lines = [*_wrapped("", self.verdict, width, 0), ""]
        lines += [line for name, text in rows for line in _wrapped(name, text, width)]
        for device in self.devices:
            lines += ["", *_wrapped("", f"{device.name}, {device.parallel} ({device.source})", width, 0)]
            lines += [line for name, text in _figures(device) for line in _wrapped(f"  {name}", text, width)]
        if self.measured_busy:
            lines += _wrapped("", "Other programs took the processors while these were measured, so that the CPU can "
                              "do more: run kernelwright doctor again on a quiet machine.", width, 0)
        if self.missing:
            lines += ["", "Not here"]
            lines += [line for missing in self.missing
                      for line in _wrapped(f"  {missing.name}", missing.sentence(), width, 15)]
        return "\n".join(lines)


def doctor(*, refresh: bool = False) -> Machine:
    """Examine this machine. ``refresh`` measures again in place of taking what is known, as is done in any case with
    figures for which other programs had left no time. Raises nothing."""
    cpu = measured_cpu(refresh=refresh)
    devices = [measured_cpu(refresh=True) if measured_busy(cpu) and not refresh else cpu]
    missing = list(_missing_tools())
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        try:
            devices.append(measured_cuda(index, refresh=refresh))
        except RuntimeError as error:
            missing.append(Missing(f"GPU {index}", True, f"it cannot be measured ({str(error).splitlines()[0]})", ""))
    missing += _missing_extras()
    host = TARGETS[HOST_TARGET].compiler
    programs = {os.path.basename(os.environ.get(host[0]) or host[1]): shutil.which(os.environ.get(host[0]) or host[1]),
                "nvcc": find_cuda_compiler(), "ninja": shutil.which("ninja")}
    return Machine(
        verdict=verdict(devices, missing),
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        python_version=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor_name(),
        threads=torch.get_num_threads(),
        memory_bytes=memory_bytes(),
        compilers={name: version_of(path) for name, path in programs.items() if path is not None},
        cache=str(cache_folder()),
        devices=tuple(devices),
        measured_busy=measured_busy(devices[0]),
        missing=tuple(missing),
    )


def verdict(devices: list[Device], missing: list[Missing]) -> str:
    """What can be done here, in a line."""
    lacking = [one for one in missing if one.needed]
    # Whatever compiles for a GPU needs what compiles for the host, and not the other way round.
    of_host = [one for one in lacking if one.name != "nvcc" and not one.name.startswith("GPU ")]
    ready = [] if of_host else [d.name for d in devices if d.kind == "cpu" or not lacking]
    if not ready:
        return f"Not ready: no {of_host[0].name}, so that {of_host[0].cost}."
    said = f"Ready: kernels for {' and '.join(dict.fromkeys(ready))} are built, checked and timed here"
    return f"{said}; none for the GPU, as there is no {lacking[0].name}." if lacking else f"{said}."


def _missing_tools() -> Iterator[Missing]:
    """What kernels need and is not here."""
    try:
        find_tools(TARGETS[HOST_TARGET])
    except NoCppCompiler as error:
        yield Missing("C++ compiler", True, "no kernel is built: optimize and bench refuse, explain works", _fix(error))
    except NinjaMissing as error:
        yield Missing("ninja", True, "PyTorch compiles nothing: optimize and bench refuse, explain works", _fix(error))
    gpu = torch.cuda.is_available()
    if not gpu:
        fix = "install PyTorch's build for CUDA" if _DRIVER.exists() and torch.version.cuda is None else ""
        yield Missing("CUDA device", False, "with --target cuda kernels are checked by emulation, and not timed", fix)
    if find_cuda_compiler() is None:
        cost = "the GPU's kernels are not compiled" if gpu else \
            "with --target cuda kernels are not compiled as a check, and --embed-for puts none into the file"
        release = f" {torch.version.cuda}" if torch.version.cuda else ""
        yield Missing("nvcc", gpu, cost, f"install the CUDA toolkit{release}, or set NVCC")
    for name, target in TARGETS.items():
        if target.compiler != TARGETS[HOST_TARGET].compiler:
            try:
                find_compiler(target)
            except NoCppCompiler as error:
                yield Missing(f"{target.language} compiler", False, f"--target {name} is refused", _fix(error))
    if not waits():
        yield Missing("schedstat", False, "no busy machine is noticed: the kernel does not tell how long threads wait "
                      "for processors", "")


def _missing_extras() -> Iterator[Missing]:
    for extra, (packages, cost) in _EXTRAS.items():
        if absent := [name for name in packages if importlib.util.find_spec(name) is None]:
            yield Missing(" and ".join(absent), False, cost, f"pip install 'kernelwright[{extra}]'")


def _fix(error: KernelwrightError) -> str:
    return error.fix[:1].lower() + error.fix[1:].rstrip(".")


def _figures(device: Device) -> list[tuple[str, str]]:
    """The figures of a device, of what it has: a CPU has no TF32, and a loop on all of its threads for a launch."""
    cpu = device.kind == "cpu"
    kinds = [("TF32", device.tf32)] * (not cpu) + [
        ("float16", device.float16), ("bfloat16", device.bfloat16), ("float64", device.float64_matmul)]
    return [
        ("memory", f"read {scaled(device.read, 'B/s')}, copy {scaled(device.copy, 'B/s')}, last-level cache "
                   f"{device.cache_bytes / 2**20:.4g} MiB"),
        ("float32", f"{scaled(device.float32, 'FLOP/s')}, matrix product {scaled(device.float32_matmul, 'FLOP/s')}"),
        ("products", ", ".join(f"{name} {scaled(rate, 'FLOP/s')}" for name, rate in kinds)),
        ("launch", f"{device.launch_seconds * 1e6:.3g} us{' for a loop on all threads' if cpu else ''}")]


def _wrapped(name: str, text: str, width: int, indent: int = 11) -> list[str]:
    """A row of the report: its name, and its text in a column beside it."""
    first = f"{name:<{indent}}" if len(name) < indent else f"{name} "
    return textwrap.wrap(text, max(width, 40), initial_indent=first if name else "", subsequent_indent=" " * indent,
                         break_long_words=False, break_on_hyphens=False)


def version_of(path: str) -> str:
    """The line with a program's version, and its path."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"does not run ({path})"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    line = next(
        (line for line in lines if re.search(r"\d+\.\d+", line)), lines[0] if lines else "version unknown"
    )
    return f"{line} ({path})"
