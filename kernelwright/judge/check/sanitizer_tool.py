"""compute-sanitizer on this machine: where it is, under what isolation it works, and the known faults."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kernelwright.build.module import find_cuda_compiler
from kernelwright.judge.reading.sanitizer import MARK
from kernelwright.judge.sandbox import isolation
from kernelwright.judge.sandbox.confine import Mechanisms
from kernelwright.judge.worker.machine import architecture
from kernelwright.settings import cache_folder

CONTROL = Path(__file__).parents[1] / "controls" / "faults.cu"
_CONTROL_SECONDS = 120.0


@dataclass(slots=True)
class Sanitizer:
    """The tool, and what this process has learned of it. ``ways``: under what isolation it may still work, the
    strongest first; ``works``: whether it has worked under the first of them; ``why`` it did not under others."""

    executable: Path
    ways: list[Mechanisms]
    works: bool = False
    why: str = field(default="it does not work under the isolation of this machine")

    def gives_up(self, words: str) -> None:
        """It did not work under the first of ``ways``, as ``words`` say."""
        del self.ways[0]
        self.why = f"it does not work here: {words}"

    def files(self) -> tuple[str, ...]:
        """The executable, and the libraries beside it, that a confined process may read."""
        return tuple(str(file) for file in sorted(self.executable.parent.iterdir()) if file.is_file())


@functools.cache
def find_sanitizer(device: torch.device) -> Sanitizer | None:
    """compute-sanitizer: beside nvcc, in its toolkit, or on PATH."""
    folders = []
    if (nvcc := find_cuda_compiler()) and (found := shutil.which(nvcc)):
        for folder in (Path(found).parent, Path(found).resolve().parent):
            folders += [folder, folder.parent / "compute-sanitizer"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    found = shutil.which("compute-sanitizer", path=path)
    return Sanitizer(Path(found).resolve(), list(ways(device.type == "cuda"))) if found else None


def ways(cuda: bool) -> Iterator[Mechanisms]:
    """The isolation of all workers, then what keeps the network and other users' files from a process without a part of
    it: the tool's two processes speak through a socket, and leave files in the system's temporary folder."""
    strongest = isolation.available(cuda)
    yield strongest
    if "network" not in strongest.namespaces:
        return
    others = [replace(strongest, seccomp=False)] if strongest.seccomp else []
    if os.geteuid() == 0:
        others.append(Mechanisms(tuple(kind for kind in strongest.namespaces if kind in ("network", "IPC")),
                                 other_user=True))
    yield from (mechanisms for mechanisms in others if isolation.works(mechanisms, cuda))


@functools.cache
def control_library(device: torch.device) -> Path | str:
    """The library with a fault for each tool, kept for other processes; or why there is none."""
    nvcc = find_cuda_compiler()
    if nvcc is None:
        return "there is no nvcc, with which a known fault is built"
    text, arch = CONTROL.read_bytes(), f"sm_{architecture(device).replace('.', '')}"
    folder = cache_folder() / "judge_builds"
    folder.mkdir(parents=True, exist_ok=True)
    facts = f"{os.path.realpath(nvcc)} {os.stat(nvcc).st_mtime_ns} {arch}".encode()
    library = folder / f"control-{hashlib.sha256(text + facts).hexdigest()[:40]}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as place:
        made = Path(place) / "control.so"
        command = [nvcc, "-std=c++17", f"-arch={arch}", "-lineinfo", "-shared", "-Xcompiler", "-fPIC", "-o", str(made),
                   str(CONTROL)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CONTROL_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"a known fault cannot be built: {error}"
        if run.returncode:
            return f"a known fault cannot be built: {last_line(run.stderr or run.stdout)}"
        os.chmod(made, 0o644)  # a worker may be another user
        os.replace(made, library)
    return library


def last_line(printed: str) -> str:
    """The last line that a program printed, and the tool did not."""
    return next((line.strip()[:300] for line in reversed(printed.splitlines())
                 if line.strip() and MARK not in line), "it said nothing")
