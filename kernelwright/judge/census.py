"""How much of a candidate's time is spent in kernels of its own: measured by a profiler, told apart by their names.

On a GPU every kernel that runs in a few calls is one of the candidate's own where its name is that of a ``__global__``
function, or of a Triton kernel, in the candidate's text; all others are a library's. On a CPU the profiler sees
PyTorch's operators, and what is left of a call is the candidate's own, less what Python needs to call an operator.
The share is what a worker says: it decides a class, and (where own kernels are asked for) it only refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kernelwright.judge import protocol
from kernelwright.judge.contestant import Contestant
from kernelwright.judge.link import CandidateRaised
from kernelwright.judge.process import Worker, WorkerFailure
from kernelwright.judge.protocol import Broken
from kernelwright.problem import Problem
from kernelwright.verify.state import State

CALLS = 5
#: Host seconds that Python spends on calling one operator of PyTorch, beside the operator itself.
CALL_SECONDS = 4e-6
#: Of a CPU call's time that no operator explains, less than this is not a kernel's: it is what is in between.
LEAST_UNEXPLAINED = 0.02
_GLOBAL = re.compile(r"__global__[\s\w:<>,()&*\"']*?\b(\w+)\s*\((?!\s*\d)")
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|__maxnreg__\s*\([^()]*\)")
_TRITON = re.compile(r"@(?:triton\.)?jit\b[^\n]*\n(?:\s*@[^\n]*\n)*\s*def\s+(\w+)")
#: What a Python file needs to have code of its own run on a CPU.
_NATIVE = re.compile(r"load_inline|cpp_extension|ctypes|CDLL|dlopen|numba|cffi|import_module|PyDLL|torch\.ops")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@dataclass(frozen=True, slots=True)
class Census:
    """``own_share`` of the time, the candidate's own kernels that ran with [seconds, launches], and those of libraries.

    On a CPU kernels have no names, and ``own`` is empty. ``never_ran``: kernels of the text that did not run.
    """

    own_share: float
    own: dict[str, tuple[float, int]]
    library: dict[str, tuple[float, int]]
    never_ran: tuple[str, ...] = ()


def own_share(worker: Worker, problem: Problem) -> float | None:
    """Share of the device's (on a CPU: the call's) time in the candidate's own kernels; None where it is not known."""
    found = take_census(worker, problem)
    return found.own_share if found else None


def take_census(worker: Worker, problem: Problem) -> Census | None:
    """Profile a few calls on the problem's own inputs; None where the profiler sees nothing, or the worker fails.

    The candidate keeps its state.
    """
    contestant = Contestant("census", worker, training=None)
    try:
        contestant.send(0, problem.make_inputs(0), State(), parameters=False)
        reply = contestant.ask("profile", {"calls": CALLS})
        kernels, operators = _table(reply, "kernels"), _table(reply, "operators")
        wall = float(protocol.field(reply, "wall", float))
    except Broken as broken:
        worker.breach(str(broken), "run")
        return None
    except (WorkerFailure, CandidateRaised):
        return None
    text = worker.candidate.read_text(encoding="utf-8-sig", errors="replace")
    return on_device(text, kernels) if problem.device.type == "cuda" else on_processor(text, operators, wall)


def kernel_names(text: str) -> set[str]:
    """Names of the CUDA and Triton kernels that a candidate's text defines."""
    plain = _BOUNDS.sub(" ", _COMMENT.sub(" ", text))
    return set(_GLOBAL.findall(plain)) | set(_TRITON.findall(text))


def base_name(kernel: str) -> str:
    """The name of a kernel as the profiler tells it (``void one::two<float>(float*)``), without all that surrounds it:
    ``two``. A mangled name gives its last part."""
    if kernel.startswith("_Z"):
        parts, rest = [], kernel[2:].lstrip("NL")
        while found := re.match(r"(\d+)", rest):
            size = int(found[1])
            parts.append(rest[found.end():found.end() + size])
            rest = rest[found.end() + size:]
        return parts[-1] if parts else kernel
    depth, kept = 0, []
    head = kernel.replace("(anonymous namespace)", "").replace("<unnamed>", "")
    for letter in head:
        if letter == "(" and depth == 0:
            break
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and letter != ">":
            kept.append(letter)
    words = "".join(kept).split()
    return words[-1].rpartition("::")[2] if words else kernel


def on_device(text: str, kernels: dict[str, tuple[float, int]]) -> Census | None:
    """The census of kernels that a GPU ran; None where none was seen."""
    names = kernel_names(text)
    moved = {name: found for name, found in kernels.items() if not name.startswith(("Memset", "[memory]"))}
    own = {name: found for name, found in moved.items() if base_name(name) in names}
    total = sum(seconds for seconds, _ in moved.values())
    if total <= 0:
        return None
    ran = {base_name(name) for name in own}
    return Census(sum(seconds for seconds, _ in own.values()) / total, own,
                  {name: found for name, found in moved.items() if name not in own}, tuple(sorted(names - ran)))


def on_processor(text: str, operators: dict[str, tuple[float, int]], wall: float) -> Census | None:
    """The census of a CPU's calls: what PyTorch's operators do not explain, where there is code of the file's own."""
    library = {name: found for name, found in operators.items() if name.startswith("aten::")}
    if not _NATIVE.search(text):
        return Census(0.0, {}, library)
    if wall <= 0:
        return None
    explained = sum(seconds + count * CALL_SECONDS for seconds, count in library.values())
    share = max(0.0, min(1.0, 1 - explained / wall))
    return Census(share if share >= LEAST_UNEXPLAINED else 0.0, {}, library)


def _table(reply: dict[str, Any], name: str) -> dict[str, tuple[float, int]]:
    """A checked table of the worker's: name, seconds, number. Raises Broken."""
    rows = protocol.field(reply, name, list)
    found: dict[str, tuple[float, int]] = {}
    for row in rows[:1000]:
        if type(row) is not list or len(row) != 3 or type(row[0]) is not str or len(row[0]) > 400 \
                or type(row[1]) is not float or not 0 <= row[1] < 1e6 or type(row[2]) is not int or row[2] < 0:
            raise Broken(f"sent an answer whose field {name} is no census")
        found[row[0]] = (row[1], row[2])
    return found
