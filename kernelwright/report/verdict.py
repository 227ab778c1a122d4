"""The verdict in a few lines: how much faster, how exact, and where the file is."""

from __future__ import annotations

from kernelwright.codegen.generate import TARGETS
from kernelwright.records import Mode, ResultRecord, words_of
from kernelwright.report import units
from kernelwright.report.measured import loss_sentence, speed_sentence
from kernelwright.timing.baselines import EAGER
from kernelwright.timing.speedup import UNKNOWN

LANGUAGES = {target.name: target.language for target in TARGETS.values()}


def title(result: ResultRecord) -> str:
    """``C++ kernels for A Processor``."""
    return f"{LANGUAGES.get(result.target, result.target)} kernels for {result.device}"


def lines(result: ResultRecord) -> list[tuple[str, str, str]]:
    """The verdict as (label, text, style): whether it is an earlier run's, of each mode its speed-up and accuracy, as
    far as these were asked for, then the file."""
    found: list[tuple[str, str, str]] = []
    if result.kept_since is not None:
        found.append(("kept result", kept(result, result.kept_since), "yellow"))
    for mode in result.modes:
        label = f" ({words_of(mode.name)})" if len(result.modes) > 1 else ""
        if mode.timing is not None or mode.certificate is not None or not mode.runs:
            text, style = speed(mode)
            found.append((f"speed-up{label}", text, style))
        if mode.certificate is not None:
            found.append((f"accuracy{label}", accuracy(mode), "green" if mode.certificate.passed else "red"))
    if result.path is not None:
        found.append(("file", str(result.path), ""))
    return found


def kept(result: ResultRecord, since: str) -> str:
    """That the result is an earlier run's, and of when."""
    checked = ", and held again now on new values" if any(mode.runs for mode in result.modes) else ""
    return (f"the same command made it at {since[:16].replace('T', ' ')}{checked}; all times are of then "
            "(--refresh measures anew)")


def speed(mode: Mode) -> tuple[str, str]:
    """(how much faster a mode is than eager and the compiled baselines, style)."""
    if not mode.runs:
        lost = loss_sentence(mode.timing) if mode.timing is not None else ""
        return "none, the file is the original" + (
            f": kernels were built and checked, and are not worth it, {lost}" if lost else ""), "yellow"
    if mode.timing is None or not mode.timing.ratios:
        return "not timed", "yellow"
    found = mode.timing.speed_up(EAGER)
    if found is not None and found.verdict == UNKNOWN:
        return f"{speed_sentence(mode.timing)}; the kernels stay as predicted", "yellow"
    return speed_sentence(mode.timing), "green"


def accuracy(mode: Mode) -> str:
    """The error beside PyTorch's own, and what it rests on."""
    certificate = mode.certificate
    assert certificate is not None
    if certificate.given_up or certificate.is_of_original or not mode.runs:
        return "the original computation, unchanged"
    if not certificate.passed:
        return certificate.sentence()
    trials = units.counted(sum(trial.gates for trial in certificate.trials), "trial")
    return (f"relative error {certificate.candidate_error:.2g} (PyTorch's own: {certificate.eager_error:.2g}), "
            f"{trials} against float64 passed")
