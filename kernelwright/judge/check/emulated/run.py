"""Candidates with CUDA kernels on a machine without a GPU: recorded, compiled where nvcc is, and run by emulation.

What a candidate hands to ``load_inline`` or ``load`` is recorded in a process that builds nothing. The judge compiles
it with nvcc for sm_90a where there is one, rewrites it for the CPU, and builds it against PyTorch and the emulation of
:mod:`kernelwright.codegen.cuda`. A second process then runs the candidate with that build.

Supported: kernels and device functions, templates, ``<<< >>>`` launches with any grid and block, shared memory (fixed
and dynamic), ``__syncthreads``, warp shuffles and votes, atomics, ``__constant__`` memory, vector types, the device's
arithmetic in float, double and integers, PyTorch's tensors and dispatch macros, guards and current streams. Not
supported, and said: 16-bit device types, tensor cores, inline PTX, cooperative groups, textures, CUDA's libraries, CUB
and Thrust, CUDA graphs, streams and events of its own, the device's clock, launches from kernels, Triton and other
compilers of Python. A kernel whose blocks wait for one another does not end.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelwright.judge.check.emulated.build import Built, build_for_cpu, compile_for_device
from kernelwright.judge.check.emulated.text import unsupported
from kernelwright.judge.check.faults import fault_finding, fault_verdict
from kernelwright.judge.inside.recorder import key_of
from kernelwright.judge.reading import sanitizer
from kernelwright.judge.reading.build_errors import decisive
from kernelwright.judge.reading.build_messages import messages_of
from kernelwright.judge.reading.ctokens import tokens_of
from kernelwright.judge.reading.source import take_apart
from kernelwright.judge.records import Finding
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.process import Worker
from kernelwright.problem.importing import IMPORT_SEED

#: Compilers of Python for GPUs, by the module that is imported.
_COMPILERS = {"triton": "Triton", "cupy": "CuPy", "numba": "Numba", "cutlass": "CUTLASS", "tilelang": "TileLang",
              "pycuda": "PyCUDA", "warp": "Warp"}
_MOST_CALLS = 16
#: What C++ for a GPU contains, kernels of its own or a library's.
_OF_DEVICE = re.compile(r"__global__|<<<|cuda|cublas|cudnn|cutlass|thrust|\bcub\b|c10::cuda", re.IGNORECASE)
#: How the emulation's own errors begin; the kinds of a kernel's faults, by what they are called there.
_LAUNCH, _KERNEL = "CUDA emulation: the launch", "CUDA emulation: the kernel"
_KINDS = {"illegal memory access": sanitizer.OUT_OF_BOUNDS, "outside of the block's": sanitizer.OUT_OF_BOUNDS,
          "divergent barrier": sanitizer.BARRIER, "leaves out the calling lane": sanitizer.BARRIER}


@dataclass(frozen=True, slots=True)
class Emulation:
    """How a candidate's CUDA kernels run here. ``libraries`` maps keys of recorded calls to built files. Where they
    cannot run, ``verdict`` (JUDGE-NO-DEVICE or BUILD-...) and ``finding`` say why. ``words`` say what was done,
    as a limit."""

    libraries: Mapping[str, Path] = field(default_factory=dict)
    words: str = ""
    verdict: str | None = None
    finding: Finding | None = None

    def attach(self, worker: Worker, seconds: float = 60.0) -> None:
        """Give a candidate's process the builds, before it loads. Raises WorkerFailure."""
        folder = worker.folder / "emulated"
        folder.mkdir(exist_ok=True)
        names = {}
        for key, library in self.libraries.items():
            shutil.copy(library, folder / library.name)
            names[key] = f"emulated/{library.name}"
        worker.request("emulate", {"libraries": names}, seconds=seconds, stage="build")


def needs_device(text: str) -> str | None:
    """What a candidate's text needs a GPU for: "CUDA", or the name of a compiler of Python; None for nothing.

    Text that is no Python needs none.
    """
    try:
        source = take_apart(text, None)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(source.tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(
            node, ast.ImportFrom) else []
        for module in modules:
            if module.split(".")[0] in _COMPILERS:
                return _COMPILERS[module.split(".")[0]]
    for kernels in source.kernels:
        if any(f.is_kernel for f in kernels.functions) or any(t.text == "__global__" for t in tokens_of(kernels.text)):
            return "CUDA"
    # A file that can build for either device names the option, and has C++ alone.
    if source.kernels and not any(_OF_DEVICE.search(kernels.text) for kernels in source.kernels):
        return None
    given = {k.arg for n in ast.walk(source.tree) if isinstance(n, ast.Call) for k in n.keywords}
    return "CUDA" if given & {"cuda_sources", "with_cuda"} else None


def emulate(candidate: Path, text: str, limits: Limits) -> Emulation:
    """Record, compile and build the CUDA kernels of a candidate's file.

    Raises WorkerFailure where the process that records fails.
    """
    needed = needs_device(text)
    if needed != "CUDA":
        return _no_device(f"It uses {needed}, which compiles for a GPU only, and there is none here")
    with Worker(candidate, torch.device("cpu"), limits) as worker:
        seconds = float(limits.build_seconds)
        request = {"source_name": worker.source_name, "import_seed": IMPORT_SEED}
        reply = worker.request("record", request, seconds=seconds, stage="build")
    told = reply if reply.get("ok") else {}
    calls = [call for call in told.get("calls", []) if _is_call(call)][:_MOST_CALLS]
    libraries: dict[str, Path] = {}
    compiled: list[tuple[bool | None, str]] = []
    for call in calls:
        with ThreadPoolExecutor(2) as both:
            device = both.submit(compile_for_device, call, seconds)
            lacks = unsupported([*call["cpp"], *call["cuda"]])
            cpu = Built(None) if lacks else build_for_cpu(call, seconds)
            compiled.append(device.result())
        if compiled[-1][0] is False:
            finding = decisive(compiled[-1][1], text)
            return Emulation(verdict=finding.evidence["verdict"], finding=finding)
        if lacks:
            words, name = lacks
            return _no_device(f"Its kernels use {words} ({name}), which the emulation of CUDA lacks, and there is no "
                              "GPU here"
                              f"; {_compiled(compiled)}", lacks=words, name=name)
        if cpu.file is None:
            return _not_built(cpu.log, text, compiled)
        libraries[key_of(call)] = cpu.file
    if not calls and told.get("error") is None:  # without them it may take a path of its own, which is another
        return _no_device("It builds its CUDA kernels after it was imported, as in a constructor, where the emulation "
                          "of CUDA does not see them, and there is no GPU here")
    return Emulation(libraries, f"its CUDA kernels ran by emulation on the CPU; {_compiled(compiled)}")


def emulated_failure(error: Mapping[str, Any]) -> tuple[str, Finding] | None:
    """The verdict on what an emulated candidate raised (``type``, ``message``, ``line``), if the emulation's."""
    message = str(error.get("message", ""))
    if error.get("type") == "NotEmulated":
        return "JUDGE-NO-DEVICE", Finding("not-emulated", f"It cannot run without a GPU: {message}.", "run",
                                          "Judge it where there is a GPU.", error.get("line"))
    words = message.removeprefix("CUDA emulation: ").split("\n")[0]
    sentence = f"{words[:1].upper()}{words[1:]}."
    if message.startswith(_LAUNCH):
        return "CRASH-LAUNCH", Finding("launch-failed", sentence, "run", "Launch with a grid, a block and shared "
                                       "memory that the device has.", error.get("line"))
    if message.startswith(_KERNEL):
        kind = next((kind for part, kind in _KINDS.items() if part in words), sanitizer.OTHER)
        return fault_verdict(kind), fault_finding(kind, sentence, error.get("line"))
    return None


def _no_device(sentence: str, **evidence: Any) -> Emulation:
    return Emulation(verdict="JUDGE-NO-DEVICE", finding=Finding(
        "not-emulated", f"{sentence}.", "build", "Judge it where there is a GPU.", evidence=evidence))


def _not_built(log: str, text: str, compiled: list[tuple[bool | None, str]]) -> Emulation:
    """The compiler of the CPU refuses the rewritten text. Where nvcc took it, or was not asked, that says nothing."""
    first = next((m for m in messages_of(log) if m.kind in ("compile", "link")), None)
    said = log[:200]
    if first is not None:
        line = decisive(log, text).line
        said = f"line {line}: {first.text}" if line else first.text
    return _no_device(f"Its kernels could not be built for the emulation of CUDA ({said}), and there is no GPU here; "
                      f"{_compiled(compiled)}", message=said)


def _compiled(compiled: list[tuple[bool | None, str]]) -> str:
    if any(done is None for done, _ in compiled):
        why = next(why for done, why in compiled if done is None)
        return f"nvcc did not compile them: {why}"
    return "nvcc compiles them for sm_90a"


def _is_call(call: Any) -> bool:
    """Whether a recorded call has the form of one: it was told by the candidate's process."""
    if not (isinstance(call, dict) and set(call) == {"name", "cpp", "cuda", "functions", "flags"}):
        return False
    lists = all(isinstance(call[k], list) and all(isinstance(t, str) for t in call[k])
                for k in ("cpp", "cuda", "flags"))
    names = call["functions"]
    return lists and isinstance(call["name"], str) and (names is None or (isinstance(names, dict) and all(
        isinstance(k, str) and k.isidentifier() and isinstance(v, str) for k, v in names.items())))
