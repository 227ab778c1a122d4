"""Results of candidates that ended before there was anything to compare: a process that failed, an exception, a launch
that nobody looked after."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.judge.build_errors import decisive
from kernelwright.judge.build_messages import messages_of
from kernelwright.judge.emulated import emulated_failure
from kernelwright.judge.link import CandidateRaised
from kernelwright.judge.process import WorkerFailure
from kernelwright.judge.records import CandidateResult, Finding

_MISSING = ("AttributeError", "NameError", "UnboundLocalError")


def failed(result: CandidateResult, failure: WorkerFailure, text: str) -> CandidateResult:
    """The result of a candidate whose process failed. ``text`` is its file."""
    finding = None
    if failure.stage == "build" and messages_of(failure.printed):
        finding = decisive(failure.printed, text)
    findings = (*((finding,) if finding else ()), *result.findings)
    return replace(result, verdict=failure.verdict, reason=failure.sentence, findings=findings,
                   fix=finding.fix if finding else "")


def raised(result: CandidateResult, raised: CandidateRaised, text: str) -> CandidateResult:
    """The result of a candidate that raised: while building, or in every call. ``text`` is its file."""
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
    if messages_of(log):
        finding = decisive(log, text)
        return refused(result, finding.evidence["verdict"], finding)
    request, words = error["request"], f"{error['type']}: {error['message'].strip() or 'no message'}"
    line = error.get("line")
    source = text.splitlines()[line - 1].strip()[:200] if line and line <= len(text.splitlines()) else ""
    hint = next((f for f in result.findings if f.kind.startswith("missing-")), None)
    if error["type"] in _MISSING:
        verdict, fix = "BUILD-INCOMPLETE", hint.fix if hint else "Create what is used, or use what exists."
    elif request == "call":
        verdict, fix = "CRASH-RAISED", ""
    else:
        verdict, fix = ("BUILD-IMPORT" if request == "load" else "BUILD-CONSTRUCT"), ""
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
