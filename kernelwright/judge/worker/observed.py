"""A candidate's process under a tool that looks at it from outside: what is asked of it stands in a file, nothing comes
back, and what it printed, the tool's lines among it, is kept.

It is confined and limited as a worker is. It has no line to the judge and no shared memory: a tool that starts it need
hand nothing on, and each of its inputs is an allocation of its own, with the end where the tensor's end is.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.device_lock import clock
from kernelwright.judge.inside.tensors import Packer
from kernelwright.judge.sandbox import isolation
from kernelwright.judge.sandbox.confine import Mechanisms
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.machine import free_bytes, overrides, proportional_bytes
from kernelwright.judge.worker.main import DONE
from kernelwright.judge.worker.printed import Printed
from kernelwright.judge.worker.process import MEMORY_SHARE, furnish, source_name
from kernelwright.judge.worker.shared_memory import SharedMemory

_LOOK_SECONDS = 0.05
#: PyTorch takes each tensor from the driver by itself, so that the end of a tensor is the end of an allocation.
_UNPOOLED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, as a worker is asked; ``packer`` has the tensors that it brings."""

    kind: str
    payload: dict[str, Any]
    packer: Packer | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of it: how many of the requests were done, what was printed, and how the process ended: its status, or
    None and ``why`` the judge ended it. ``seconds`` is wall time."""

    done: int
    printed: str
    status: int | None
    why: str
    seconds: float
    isolation: str = ""


def observe(tool: Sequence[str], candidate: Path, requests: Sequence[Request], device: torch.device, limits: Limits,
            mechanisms: Mechanisms, seconds: float, *, files: Mapping[str, Path] | None = None,
            readable: tuple[str, ...] = ()) -> Observed:
    """Start the candidate's process by ``tool`` (words before the interpreter's, an absolute path first) and wait until
    it has ended, at most ``seconds``.

    ``files`` are copied into its folder under their names; ``readable`` are files that it may read besides. Raises
    SandboxError where nothing starts.
    """
    folder = Path(tempfile.mkdtemp(prefix="kernelwright_judge_"))
    printed = Printed(limits.output_bytes, limits.flood_bytes)
    process: isolation.Sandboxed | None = None
    started = clock()
    try:
        furnish(folder, candidate)
        for name, file in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / name)
        _write(folder, requests)
        command = [*tool, sys.executable, "-I", "-P", "-B", str(folder / "worker.py"), "requests.jsonl", "inputs.bin"]
        variables = isolation.environment(folder, {**overrides(device, None), **_UNPOOLED})
        process = isolation.start(command, folder, (), limits, variables, printed.descriptor, mechanisms, readable)
        printed.begin()
        why = _wait(process, printed, limits, started + seconds)
        status = process.poll() if not why else None
        process.end()
        printed.drain()
        text = printed.text()
        return Observed(text.count(f"{DONE} "), text, status, why, clock() - started, process.isolation)
    finally:
        if process is not None:
            process.end()
        printed.close()
        shutil.rmtree(folder, ignore_errors=True)


def place(device: torch.device) -> Request:
    """The first request: where the candidate runs, as its process sees the devices."""
    return Request("place", {"device": "cuda:0" if device.type == "cuda" else "cpu"})


def load(candidate: Path, import_seed: int) -> Request:
    """The request by which the candidate's file is imported."""
    return Request("load", {"source_name": source_name(candidate), "import_seed": import_seed})


def _write(folder: Path, requests: Sequence[Request]) -> None:
    """Requests and the bytes of their tensors, one after another in one file."""
    lines, begin = [], 0
    with open(folder / "inputs.bin", "wb") as inputs:
        for request in requests:
            payload = request.payload
            if request.packer is not None:
                shared = SharedMemory("inputs")
                try:
                    places = shared.pack(request.packer)
                    with os.fdopen(os.dup(shared.descriptor), "rb") as source:
                        source.seek(0)
                        shutil.copyfileobj(source, inputs)
                    payload = {**payload, "tensors": request.packer.entries, "storages": [
                        [begin + at, size, storage.device.type != "cpu"]
                        for (at, size), storage in zip(places, request.packer.storages, strict=True)]}
                    begin += shared.bytes
                finally:
                    shared.close()
            lines.append(json.dumps({"kind": request.kind, "payload": payload}))
        inputs.write(b"\0")  # a file without bytes cannot be mapped
    (folder / "requests.jsonl").write_text("\n".join(lines))


def _wait(process: isolation.Sandboxed, printed: Printed, limits: Limits, deadline: float) -> str:
    """Wait for its end; words where a limit is passed."""
    most = limits.memory_bytes or int(MEMORY_SHARE * free_bytes())
    while process.poll() is None:
        if clock() > deadline:
            return "it did not end in its time"
        count, _, size = isolation.usage(process.pid)
        if printed.flooded:
            return f"it printed more than {limits.flood_bytes >> 20} MiB"
        if count > limits.processes:
            return f"it had {count} processes"
        if size > most and proportional_bytes(process.pid) > most:
            return f"it used more than {most / 2**30:.1f} GiB of memory"
        time.sleep(_LOOK_SECONDS)
    return ""
