"""A candidate's kernels under NVIDIA's compute-sanitizer: memory beyond its end, races in shared memory, misused
barriers, memory that nobody has written.

Each tool gets a run of its own, in a process that is confined and limited as any of the candidate's
(`worker/observed.py`): the candidate is made and called on small inputs, in which tensors lie in allocations of their
own, and then a kernel with a known fault of the tool's kind is launched in the same process. Only a run that saw that
fault says that there is no other: a tool that never finds anything proves nothing. What is found in kernels of the
candidate's own text is a verdict, or a limit where results do not depend on it; what libraries do is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernelwright.device_lock import clock
from kernelwright.judge.check.faults import fault_finding, fault_verdict
from kernelwright.judge.check.refusals import refused
from kernelwright.judge.check.sanitizer_tool import Sanitizer, control_library, find_sanitizer, last_line
from kernelwright.judge.check.variants import variants
from kernelwright.judge.inside.tensors import Packer
from kernelwright.judge.reading.sanitizer import BARRIER, RACE, Fault, read_report
from kernelwright.judge.reading.source import Source, take_apart
from kernelwright.judge.records import CandidateResult, Finding, ToolRun
from kernelwright.judge.sandbox import isolation
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.judge.worker.handover import NotHandedOver, arguments_of, encoded, gives_keywords
from kernelwright.judge.worker.observed import Observed, Request, load, observe, place
from kernelwright.problem import Problem
from kernelwright.problem.importing import IMPORT_SEED
from kernelwright.verify.flatten import map_tensors

#: The tools in the order in which they run: each with its share of the time, its options, and what the text of a
#: candidate without any of which it has nothing to look at.
_TOOLS: dict[str, tuple[int, tuple[str, ...], str]] = {
    "memcheck": (2, ("--padding", "4096"), ""),
    "racecheck": (1, (), r"shared|jit\b|asm\b"),
    "synccheck": (1, (), r"sync|barrier|jit\b|asm\b"),
    "initcheck": (1, (), "")}
_OPTIONS = ("--target-processes", "application-only", "--show-backtrace", "device", "--print-limit", "50",
            "--report-api-errors", "no", "--destroy-on-device-error", "kernel", "--launch-timeout", "20")
#: A run is not begun with fewer seconds than this: most of it is PyTorch's start.
_LEAST_SECONDS = 10.0
#: Inputs beyond these bytes are left out: they go by way of a file, and a tool keeps notes on each byte.
MOST_BYTES = 1 << 30
_CONTROL_ELEMENTS = 128
_CONTROL_NAME = "kernelwright_control_"
#: By what kernels order memory besides __syncthreads() and __syncwarp(): the tools know some of it, and take what they
#: do not know for a race.
_ORDERED_OTHERWISE = re.compile(r"\basm\b|mbarrier|memcpy_async|__pipeline_|cuda::(?:barrier|pipeline)|cp_async|wgmma|"
                                r"tcgen05|jit\b|__threadfence|volatile")
#: Verdicts that a tool may explain.
_EXPLAINED = ("CRASH-DEVICE", "WRONG-NONDETERMINISTIC")
_TRITON = re.compile(r"@(?:triton\.)?jit\b[^\n]*\n(?:\s*@[^\n]*\n)*\s*def\s+(\w+)")


def is_wanted(result: CandidateResult, settings: JudgeSettings, device: torch.device) -> bool:
    """Whether a candidate with this verdict is to be looked at."""
    asked = settings.sanitize == "on" or (settings.sanitize == "auto" and not settings.verdict_only)
    return asked and device.type == "cuda" and (VERDICTS[result.verdict].passed or result.verdict in _EXPLAINED)


def with_sanitizer(result: CandidateResult, candidate: Path, text: str, problem: Problem, seed: int, training: bool,
                   libraries: Mapping[str, Path], limits: Limits, settings: JudgeSettings, budget_seconds: float
                   ) -> CandidateResult:
    """``result`` with what the tools found; a verdict of its own where a candidate passed that has a fault.

    ``libraries``: what was built for the candidate, see `prebuild`. A candidate without kernels in its text is returned
    as it is.
    """
    source = take_apart(text, None)
    own = own_functions(source)
    if not own:
        return result
    try:
        asked = _requests(problem, candidate, seed, training, libraries, result)
    except NotHandedOver as error:
        return _judged(result, [ToolRun(name, "not-run", str(error)) for name in _TOOLS], (), own, source, settings)
    looked = Looked(candidate, asked, {f"prebuilt/{file.name}": file for file in libraries.values()}, problem.device,
                    limits, frozenset(own))
    runs, faults = look(looked, text, budget_seconds)
    return _judged(result, runs, faults, own, source, settings)


def own_functions(source: Source) -> dict[str, int]:
    """Functions of the candidate's text that run on a device, by name, with their lines."""
    found = {f.name: k.place(f.line) for k, f in source.functions() if f.is_device}
    for match in _TRITON.finditer(source.text):
        found.setdefault(match.group(1), source.text.count("\n", 0, match.start(1)) + 1)
    return found


@dataclass(frozen=True, slots=True)
class Looked:
    """What is looked at: the candidate, requests up to its calls (the first the smallest inputs, the last the problem's
    own, which may be the same), files for its folder, and the names of its own functions."""

    candidate: Path
    requests: tuple[Request, ...]
    files: Mapping[str, Path]
    device: torch.device
    limits: Limits
    own: frozenset[str]


def look(looked: Looked, text: str, budget_seconds: float) -> tuple[list[ToolRun], list[tuple[str, Fault]]]:
    """Run the tools, as many as there is time for; what each says, and the faults in the candidate's own functions."""
    started, runs, faults = clock(), list[ToolRun](), list[tuple[str, Fault]]()
    tool, why = find_sanitizer(looked.device), "compute-sanitizer is neither beside nvcc nor on PATH"
    control = control_library(looked.device) if tool is not None else why
    wanted = {name: share for name, (share, _, needs) in _TOOLS.items() if not needs or re.search(needs, text)}
    for name, share in wanted.items():
        if tool is None or isinstance(control, str):
            runs.append(ToolRun(name, "not-run", str(control)))
            continue
        left = budget_seconds - (clock() - started)
        rest = sum(other for it, other in wanted.items() if it not in {run.tool for run in runs})
        seconds = min(left, max(_LEAST_SECONDS, left * share / rest))
        if left < _LEAST_SECONDS:
            runs.append(ToolRun(name, "not-run", "there was no time left"))
            continue
        run, found = _run(tool, name, looked, control, seconds)
        runs.append(run)
        faults += [(name, fault) for fault in found]
    return runs, faults


def _run(tool: Sanitizer, name: str, looked: Looked, control: Path, seconds: float) -> tuple[ToolRun, list[Fault]]:
    """One tool's run, under the strongest isolation under which the tools work."""
    started = clock()
    calls = [request for request in looked.requests if request.kind == "call-alone"]
    # The tools but the first are slow, and what they look at does not depend on sizes.
    left_out = () if name == "memcheck" else calls[1:]
    requests = [request for request in looked.requests if request not in left_out]
    requests.append(Request("control", {"library": "control.so", "tool": name, "elements": _CONTROL_ELEMENTS}))
    command = [str(tool.executable), "--tool", name, *_TOOLS[name][1], *_OPTIONS]
    run, faults = ToolRun(name, "not-run", tool.why), list[Fault]()
    while tool.ways and (left := seconds - (clock() - started)) >= _LEAST_SECONDS / 2:
        try:
            seen = observe(command, looked.candidate, requests, looked.device, looked.limits, tool.ways[0], left,
                           files={**looked.files, "control.so": control}, readable=tool.files())
        except isolation.SandboxError as error:
            tool.gives_up(str(error))
            run = ToolRun(name, "not-run", tool.why)
            continue
        run, faults = _understood(name, seen, len(requests), looked.own)
        if run.outcome in ("clean", "found"):
            tool.works = True
        if tool.works or (run.outcome == "unfinished" and seen.done):
            break
        tool.gives_up(run.words)  # a process runs to its end where the tool does not reach it, and nothing is seen
    return replace(run, seconds=clock() - started), faults


def _understood(name: str, seen: Observed, asked: int, own: frozenset[str]) -> tuple[ToolRun, list[Fault]]:
    """What a run says, and the faults in the candidate's own functions."""
    report = read_report(seen.printed)
    shown = f"{_CONTROL_NAME}{name}" not in own and any(f"{_CONTROL_NAME}{name}" in f.functions for f in report.faults)
    faults = [f for f in report.faults if own.intersection(f.functions)]
    others = [f for f in report.faults if f not in faults and not any(n.startswith(_CONTROL_NAME) for n in f.functions)]
    if faults:
        return ToolRun(name, "found", "; ".join(dict.fromkeys(_phrase(f, own) for f in faults[:5]))), faults
    called = seen.done >= asked - 1
    if called and shown and report.begun:
        told = f"; in kernels of libraries: {'; '.join(_phrase(f, own) for f in others[:3])}" if others else ""
        return ToolRun(name, "clean", f"nothing in its own kernels{told}"), []
    said = " ".join(report.own[:2]) or last_line(seen.printed)
    why = seen.why or (f"its process ended with status {seen.status}" if not called else "")
    if not called:
        return ToolRun(name, "unfinished", "; ".join(filter(None, (why, said)))[:500]), []
    return ToolRun(name, "unproven", f"it did not see the known fault that it was shown"
                   f"{f' ({said})' if report.own else ''}"[:500]), []


def _judged(result: CandidateResult, runs: Sequence[ToolRun], faults: Sequence[tuple[str, Fault]],
            own: Mapping[str, int], source: Source, settings: JudgeSettings) -> CandidateResult:
    doubtful = _ORDERED_OTHERWISE.search(source.text) is not None
    findings = [("" if doubtful and fault.kind in (RACE, BARRIER) else fault_verdict(fault.kind),
                 _finding(tool, fault, own, source)) for tool, fault in faults]
    result = replace(result, sanitizer=tuple(runs))
    if not VERDICTS[result.verdict].passed:
        return replace(result, findings=(*result.findings, *(finding for _, finding in findings)))
    decisive = next((found for found in findings if found[0]), None)
    if decisive is not None:
        rest = [finding for _, finding in findings if finding is not decisive[1]]
        return replace(refused(replace(result, limits=()), *decisive),
                       findings=(decisive[1], *rest, *result.findings))
    limits = [f"{_phrase(fault, frozenset(own))} (compute-sanitizer's {tool}"
              + (", which does not know all of what orders memory there)" if doubtful and fault.kind in (RACE, BARRIER)
                 else ")") for tool, fault in faults]
    if settings.sanitize == "on":
        limits += [f"compute-sanitizer's {run.tool} does not vouch for it: {run.words}" for run in runs
                   if run.outcome not in ("clean", "found")]
    if not limits:
        return result
    together = tuple(dict.fromkeys((*result.limits, *limits)))
    words = "; ".join(together)
    return replace(result, verdict="OK-BUT", limits=together, reason=f"{words[:1].upper()}{words[1:]}.",
                   findings=(*(finding for _, finding in findings), *result.findings))


def _finding(tool: str, fault: Fault, own: Mapping[str, int], source: Source) -> Finding:
    name = next(name for name in fault.functions if name in own)
    line = own[name]
    by = f", in thread {fault.thread} of block {fault.block}" if fault.thread else ""
    return fault_finding(fault.kind, f"{_phrase(fault, frozenset(own))}{by}; compute-sanitizer's {tool} saw it.", line,
                         source.lines[line - 1].strip()[:200], tool=tool, function=name, file=fault.file,
                         file_line=fault.line, thread=fault.thread, block=fault.block)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory ends where it ends, if a copy has the same strides: a batch may be cut out of a larger."""
    size = tensor.numel() * tensor.element_size()
    if tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() == size:
        return tensor
    copy = tensor.detach().clone()
    return copy if copy.stride() == tensor.stride() else tensor


def _phrase(fault: Fault, own: frozenset[str]) -> str:
    name = next((name for name in fault.functions if name in own), fault.functions[0] if fault.functions else "?")
    return f"the kernel's function {name} {fault.words}"


def _requests(problem: Problem, candidate: Path, seed: int, training: bool, libraries: Mapping[str, Path],
              result: CandidateResult) -> tuple[Request, ...]:
    """What is asked of the candidate's process: its place, its libraries, its file, an instance, and calls on the
    smallest inputs that it is right for, then on the problem's own. Raises NotHandedOver."""
    right = {shape.words for shape in result.shapes if shape.right}
    small = min((v for v in variants(problem, seed) if v.batch is not None and v.name in right),
                key=lambda v: v.batch or 0, default=None)
    inputs: list[Any] = [small.steps[0].inputs()] if small is not None else []
    inputs.append(problem.make_inputs(seed))
    calls = []
    for arguments in inputs:
        packer = Packer()
        told = encoded(map_tensors(list(arguments), _alone), packer)
        if sum(storage.nbytes() for storage in packer.storages) <= MOST_BYTES:
            calls.append(Request("call-alone", {"inputs": told, "training": training, "seed": seed}, packer))
    if not calls:
        raise NotHandedOver(f"its inputs have more than {MOST_BYTES >> 20} MiB")
    made = {"arguments": arguments_of(problem), "seed": seed, "dtype": None, "training": training,
            "keywords": gives_keywords(problem)}
    built = [Request("prebuilt", {"libraries": {key: f"prebuilt/{file.name}" for key, file in libraries.items()}})]
    return (place(problem.device), *(built if libraries else ()), load(candidate, IMPORT_SEED), Request("make", made),
            *calls)
