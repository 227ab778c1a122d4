"""How much of a candidate's time is spent in kernels of its own: measured by a profiler, told apart by their names.

On a GPU every kernel that runs in a few calls is one of the candidate's own where its name is that of a ``__global__``
function, or of a Triton kernel, in the candidate's text; all others are a library's. On a CPU the profiler sees
PyTorch's operators, and what is left of a call is the candidate's own, less what Python needs to call an operator.
The share is what a worker says: it decides a class, and (where own kernels are asked for) it only refuses.

A share of time is none of the work: a kernel may run for nothing. So PyTorch's operators of a call are also run alone
(`inside/tape.py`), on every kind of inputs of the check and on other parameters. Where they give the same bits each
time, no own kernel is needed, and the share is zero. Where one trial differs or says nothing, the time stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.device_lock import clock
from kernelwright.judge.check.probes import judged_trials
from kernelwright.judge.clock.timed_worker import TimedWorker
from kernelwright.judge.records import Finding
from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.link import CandidateRaised
from kernelwright.judge.worker.process import Worker, WorkerFailure
from kernelwright.judge.worker.protocol import Broken
from kernelwright.problem import Problem
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.state import State

#: Share of time in own kernels below which `--own-kernels` refuses a candidate; from the ranking's 5 % on it is in the
#: class of own kernels.
LEAST_OWN = 0.01
CALLS = 5
#: How often a CPU's calls are profiled before their kernels count as doing nothing: what else a machine does makes
#: operators take longer, and so own kernels' part smaller.
ATTEMPTS = 3
#: Host seconds that Python spends on calling one operator of PyTorch, beside the operator itself.
CALL_SECONDS = 4e-6
#: Of a CPU call's time that no operator explains, less than this is not a kernel's: it is what is in between.
LEAST_UNEXPLAINED = 0.02
#: Seconds of a CPU's call below which a share of nothing is not known to be that: what calling operators takes is an
#: estimate, and a short kernel is within its error.
SHORT_CALL = 1e-4
#: Seconds after which it is left open whether own kernels are needed.
LONGEST_ALONE = 30.0
_GLOBAL = re.compile(r"__global__[\s\w:<>,()&*\"']*?\b(\w+)\s*\((?!\s*\d)")
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|__maxnreg__\s*\([^()]*\)")
_TRITON = re.compile(r"@(?:triton\.)?jit\b[^\n]*\n(?:\s*@[^\n]*\n)*\s*def\s+(\w+)")
#: What a Python file needs to have code of its own run on a CPU.
_NATIVE = re.compile(r"load_inline|cpp_extension|ctypes|CDLL|dlopen|numba|cffi|import_module|PyDLL|torch\.ops")
#: An operator of PyTorch may be the candidate's own code here.
_REPLACED = re.compile(r"""Library\(\s*["']aten|impl\(\s*["']aten::|TORCH_LIBRARY_IMPL\(\s*aten|py_impl""")
#: Events of the driver and of runtimes that launch one kernel, or a graph of many, and what a device does beside
#: kernels.
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchCooperativeKernel")
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
_NO_KERNELS = ("Memset", "Memcpy", "[memory]")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_Table = dict[str, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class OwnShare:
    """The own-kernel share: how much of the time, between 0 and 1, is spent in the candidate's own kernels.

    ``own`` are its kernels that ran, by name, with (seconds, launches); ``library`` are those of libraries. On a CPU
    kernels have no names, and ``own`` is empty. ``never_ran``: kernels of the text that did not run.
    ``needed``: whether results need the own kernels that ran; None where there are none, or it is not known.
    ``graph``: whether calls launched CUDA graphs, whatever the text says. ``short``: calls are too short to tell a
    share of nothing from a small one.
    """

    own_share: float
    own: dict[str, tuple[float, int]]
    library: dict[str, tuple[float, int]]
    never_ran: tuple[str, ...] = ()
    needed: bool | None = None
    graph: bool = False
    short: bool = False

    @property
    def is_ghost(self) -> bool:
        """Whether own kernels do next to nothing for the results."""
        return self.own_share < LEAST_OWN

    @property
    def words(self) -> str:
        """What is behind a share of zero or little, in one sentence."""
        if self.needed is False:
            return "Its own kernels have no part in its results: PyTorch's operators alone give the same bits."
        return f"{self.own_share:.0%} of its time is spent in kernels of its own: a library computes the result."


def measure_own_share(worker: Worker, problem: Problem) -> OwnShare | None:
    """Profile a few calls on the problem's own inputs, and see whether own kernels are needed; None where the profiler
    sees nothing, calls are too short for it to see kernels that are needed, or the worker fails. Afterwards the
    candidate has other parameters."""
    found = _profiled(worker, problem)
    if found is None or not (found.own_share or found.short):
        return found
    needed = are_needed(worker, problem)
    if found.short:
        return None if needed else replace(found, needed=needed)
    return replace(found, needed=needed, own_share=0.0 if needed is False else found.own_share)


def are_needed(worker: Worker, problem: Problem, seed: int = 0) -> bool | None:
    """Whether the candidate's results need more than PyTorch's operators; None where that is not known.

    Called not needed only where the operators alone give the same bits on inputs of every kind, with the parameters of
    construction and others: a kernel that changes nothing on some inputs is needed where it does on others.
    """
    if _REPLACED.search(worker.candidate.read_text(encoding="utf-8-sig", errors="replace")):
        return None
    timed_worker, started = TimedWorker("own-share", worker, training=None), clock()
    names = [*(start := State.of(problem.make_model(seed))).names(), *start.attributes]
    try:
        timed_worker.send(0, problem.make_inputs(seed + 1), start)
        timed_worker.ask("alone", {"learn": True})
        for trial in judged_trials(seed + 2):
            state = start
            if trial.changes_parameters:
                model = problem.make_model(seed)
                set_parameters(model, trial)
                state = State.of(model)
            inputs = inputs_of(trial, problem.make_inputs)
            timed_worker.send(0, inputs, state)
            same = timed_worker.ask("alone", {"learn": False, "state": names, "seed": trial.seed}).get("same")
            if same is not True or clock() - started > LONGEST_ALONE:
                return True if same is False else None
    except Broken as broken:
        worker.breach(str(broken), "run")
        return None
    except (WorkerFailure, CandidateRaised):
        return None
    return False


def unlaunched(worker: Worker, problem: Problem) -> Finding | None:
    """What says that launches of the candidate never ran, though no error was to be read: of a CUDA runtime that a
    library brings along, it is that runtime's alone. None where that was not seen, and on a CPU."""
    found = _tables(worker, problem) if problem.device.type == "cuda" else None
    text = worker.candidate.read_text(encoding="utf-8-sig", errors="replace")
    return never_launched(text, found[0], found[1]) if found is not None else None


def never_launched(text: str, kernels: _Table, operators: _Table) -> Finding | None:
    """The finding of a profile in which more kernels were launched than ran, none of the text's own among them."""
    names = kernel_names(text)
    launched = sum(count for name, (_, count) in operators.items() if name.startswith(_LAUNCHES))
    ran = sum(count for name, (_, count) in kernels.items() if not name.startswith(_NO_KERNELS))
    if not names or launched <= ran or any(base_name(name) in names for name in kernels):
        return None
    listed = ", ".join(sorted(names)[:5])
    sentence = f"None of its kernels ({listed}) ever ran: in {CALLS} calls {launched} launches were asked for, and " \
        f"the device ran {ran}. The error stays in a CUDA runtime of the file's own, where PyTorch does not see it."
    return Finding("launch-unseen", sentence, fix="Ask for a grid, a block and shared memory that the device has; read "
                   "cudaGetLastError after each launch.", evidence={"launched": launched, "ran": ran})


def _profiled(worker: Worker, problem: Problem) -> OwnShare | None:
    found = _tables(worker, problem)
    if found is None:
        return None
    text = worker.candidate.read_text(encoding="utf-8-sig", errors="replace")
    if problem.device.type == "cuda":
        share = on_device(text, found[0])
        return replace(share, graph=launches_graphs(found[1])) if share is not None else None
    best = on_processor(text, found[1], found[2])
    for _ in range(1, ATTEMPTS if _NATIVE.search(text) else 1):
        if best is None or not best.is_ghost or (found := _tables(worker, problem)) is None:
            break
        best = max(best, on_processor(text, found[1], found[2]) or best, key=lambda found: found.own_share)
    return best


def _tables(worker: Worker, problem: Problem) -> tuple[_Table, _Table, float] | None:
    """Kernels, operators and wall seconds of a few calls on the problem's own inputs; None where that fails."""
    timed_worker = TimedWorker("own-share", worker, training=None)
    try:
        timed_worker.send(0, problem.make_inputs(0), State(), parameters=False)
        reply = timed_worker.ask("profile", {"calls": CALLS})
        return _table(reply, "kernels"), _table(reply, "operators"), float(protocol.field(reply, "wall", float))
    except Broken as broken:
        worker.breach(str(broken), "run")
    except (WorkerFailure, CandidateRaised):
        pass
    return None


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


def on_device(text: str, kernels: dict[str, tuple[float, int]]) -> OwnShare | None:
    """The share among the kernels that a GPU ran; None where none was seen."""
    names = kernel_names(text)
    moved = {name: found for name, found in kernels.items() if not name.startswith(("Memset", "[memory]"))}
    own = {name: found for name, found in moved.items() if base_name(name) in names}
    total = sum(seconds for seconds, _ in moved.values())
    if total <= 0:
        return None
    ran = {base_name(name) for name in own}
    return OwnShare(sum(seconds for seconds, _ in own.values()) / total, own,
                    {name: found for name, found in moved.items() if name not in own}, tuple(sorted(names - ran)))


def launches_graphs(operators: _Table) -> bool:
    """Whether a profile's calls launched CUDA graphs."""
    return any(count for name, (_, count) in operators.items() if name.startswith(_GRAPH_LAUNCHES))


def on_processor(text: str, operators: dict[str, tuple[float, int]], wall: float) -> OwnShare | None:
    """The share in a CPU's calls: what PyTorch's operators do not explain, where there is code of the file's own."""
    library = {name: found for name, found in operators.items() if name.startswith("aten::")}
    if not _NATIVE.search(text):
        return OwnShare(0.0, {}, library)
    if wall <= 0:
        return None
    explained = sum(seconds + count * CALL_SECONDS for seconds, count in library.values())
    share = max(0.0, min(1.0, 1 - explained / wall))
    told = share >= LEAST_UNEXPLAINED
    return OwnShare(share if told else 0.0, {}, library, short=not told and wall < CALLS * SHORT_CALL)


def _table(reply: dict[str, Any], name: str) -> dict[str, tuple[float, int]]:
    """A checked table of the worker's: name, seconds, number. Raises Broken."""
    rows = protocol.field(reply, name, list)
    found: dict[str, tuple[float, int]] = {}
    for row in rows[:1000]:
        if type(row) is not list or len(row) != 3 or type(row[0]) is not str or len(row[0]) > 400 \
                or type(row[1]) is not float or not 0 <= row[1] < 1e6 or type(row[2]) is not int or row[2] < 0:
            raise Broken(f"sent an answer whose field {name} is no table of kernels")
        found[row[0]] = (row[1], row[2])
    return found
