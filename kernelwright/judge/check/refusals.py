"""Results of candidates that are refused for more than values: a process that failed, an exception, a launch that
nobody looked after, memory that is not an output's own."""

from __future__ import annotations

import re
from dataclasses import replace

from kernelwright.judge.check.emulated.run import emulated_failure
from kernelwright.judge.reading.build_errors import decisive
from kernelwright.judge.reading.build_messages import messages_of
from kernelwright.judge.records import CandidateResult, Finding
from kernelwright.judge.worker.link import CandidateRaised
from kernelwright.judge.worker.process import WorkerFailure
from kernelwright.verify.certificate import Certificate

#: What Python says where a function is called with other arguments than it takes.
_NOT_TAKEN = re.compile(r"\b(?:takes|missing|unexpected) .*\barguments?\b|unexpected keyword argument")
#: What mends an end of which only the kind is known.
_FIXES = {
    "CRASH-SIGNAL": "Look for an index beyond an array, a pointer of another type or device, and a call of exit or "
                    "abort: raise an exception (TORCH_CHECK) instead.",
    "CRASH-TIMEOUT": "Look for a loop whose variable never reaches its end, for a lock that nobody releases, and for "
                     "work that grows faster than the input.",
    "CRASH-MEMORY": "Allocate less: reuse buffers, and compute in parts what is larger than the inputs."}
#: What PyTorch says of a build that failed.
_BUILDING = "Error building extension"
_MISSING = ("AttributeError", "NameError", "UnboundLocalError")


def failed(result: CandidateResult, failure: WorkerFailure, text: str) -> CandidateResult:
    """The result of a candidate whose process failed. ``text`` is its file."""
    finding = None
    if failure.stage == "build" and messages_of(failure.printed):
        finding = decisive(failure.printed, text)
    findings = (*((finding,) if finding else ()), *result.findings)
    return replace(result, verdict=failure.verdict, reason=failure.sentence, findings=findings,
                   fix=finding.fix if finding else _FIXES.get(failure.verdict, ""))


def raised(result: CandidateResult, raised: CandidateRaised, text: str, printed: str = "") -> CandidateResult:
    """The result of a candidate that raised: while building, or in every call. ``text`` is its file, ``printed`` the
    end of what its process printed: where a file asks PyTorch for a verbose build, the compiler's messages are there
    and not in the exception."""
    error = raised.error
    emulated = emulated_failure(error)
    if emulated is not None:
        return refused(result, *emulated)
    log = "\n".join(part for part in (error["message"], error["traceback"]) if part)
    if error.get("own") == "no-class":
        return refused(result, "BUILD-NO-CLASS", Finding(
            "no-class", f"{error['message']}.", "build", fix="Define class ModelNew(nn.Module) at the top level of the "
            "file."))
    if error.get("own") in ("too-large", "too-complex"):
        return refused(result, "WRONG-STRUCTURE", Finding(error["own"], f"{error['message']}.", fix="Return what the "
                     "model returns."))
    if not messages_of(log) and _BUILDING in error["message"]:
        log = printed
    if messages_of(log):
        finding = decisive(log, text)
        return refused(result, finding.evidence["verdict"], finding)
    request, words = error["request"], f"{error['type']}: {error['message'].strip() or 'no message'}"
    line = error.get("line")
    source = text.splitlines()[line - 1].strip()[:200] if line and line <= len(text.splitlines()) else ""
    hint = next((f for f in result.findings if f.kind.startswith(("missing-", "undefined-"))
                 and any(f"'{name}'" in error["message"] for name in f.evidence.values())), None)
    if error["type"] in _MISSING:
        verdict, fix = "BUILD-INCOMPLETE", hint.fix if hint else "Create what is used, or use what exists."
    elif request == "call":
        verdict, fix = "CRASH-RAISED", ""
    else:
        verdict, fix = ("BUILD-IMPORT" if request == "load" else "BUILD-CONSTRUCT"), ""
    if error["type"] == "TypeError" and _NOT_TAKEN.search(error["message"]):
        own = next((f for f in result.findings if f.kind == "signature"
                    and f"{f.evidence['method']}()" in error["message"]), None)
        if own is not None:
            fix, line, source = own.fix, own.line, own.text
    supported = re.search(r"argument types are supported:\s*1\. \((.*?)\) ->", error["message"], re.DOTALL)
    if error["type"] == "TypeError" and supported is not None:  # what pybind11 says, with all values behind it
        words = f"{error['type']}: {error['message'].partition(':')[0]}: it takes ({supported.group(1)})"
        fix = f"Call it with what it takes: ({supported.group(1)})."
    if re.search(r"must be (?:a |on )?(?:the )?(?:CUDA|GPU)", error["message"], re.IGNORECASE):
        fix = "It asks for a GPU: judge it with --target cuda where there is one, or leave out the check."
    where = {"load": "Importing the file", "construct": "ModelNew(...)"}.get(request, "forward")
    sentence = f"{where} raises {words[:400]}"
    sentence += "" if sentence.endswith(".") else "."
    return refused(result, verdict, Finding("raises", sentence, "run", fix, line, source, {"type": error["type"]}))


def ghost(result: CandidateResult, words: str) -> CandidateResult:
    """The result of a candidate whose own kernels are asked for and do nothing, as ``words`` say."""
    return replace(result, verdict="CHEAT-GHOST", limits=(), reason=f"Its own kernels are asked for. {words}",
                   fix="Compute the result with the kernels that the file defines.")


def refused(result: CandidateResult, verdict: str, finding: Finding) -> CandidateResult:
    """``result`` with a verdict and the finding that decided it."""
    return replace(result, verdict=verdict, reason=finding.sentence, fix=finding.fix,
                   findings=(finding, *result.findings))


def never_launched(result: CandidateResult, errors: tuple[str, ...]) -> CandidateResult:
    """The result of a candidate of which launches failed and nobody looked."""
    return refused(result, "CRASH-LAUNCH", Finding(
        "launch-error", f"A kernel never ran, and nobody read the error: {', '.join(errors)}.",
        fix="Ask for a grid, a block and shared memory that the device has; read cudaGetLastError after each launch."))


def repeats_memory(certificate: Certificate) -> Finding | None:
    """Whether elements of an output share memory by a stride of zero, where those of the model's have their own."""
    compared = [trial.comparison for trial in certificate.trials if trial.comparison is not None]
    for output in (output for comparison in compared for output in comparison.outputs):
        for axis, (size, own, model) in enumerate(zip(output.shape, output.strides, output.eager_strides)):
            if size > 1 and own == 0 and model != 0:
                return Finding(
                    "repeated-memory", f"All {size} elements of {output.path} along axis {axis} share one place in "
                    "memory, by a stride of zero: whoever writes to one changes all. The model's have their own.",
                    fix="Write every element: expand() only repeats the one that is there, clone() writes them.")
    return None
