"""The two measured sections of the report: accuracy (VERIFY) and time (TIME)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernelwright.report import units
from kernelwright.report.layout import Page
from kernelwright.timing import Ratio, Timing
from kernelwright.timing.baselines import (
    CANDIDATE,
    DIRECT,
    EAGER,
    GRAPH,
    GRAPHED,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
    wall_seconds,
)
from kernelwright.timing.speedup import TIE, UNKNOWN, SpeedUp
from kernelwright.verify import Certificate, TrialPlan

#: How the candidate is called in the report.
OURS = "ModelNew"
#: Entries as tables call them, whose columns are few.
SHORT = {CANDIDATE: OURS, GRAPHED: "eager, CUDA graph", REDUCE_OVERHEAD: "reduce-overhead",
         MAX_AUTOTUNE: "max-autotune"}


def accuracy(page: Page, certificate: Certificate, title: str) -> None:
    """The certificate: verdict, errors beside eager's own, what was tried, what was skipped and why."""
    page.heading(title)
    if certificate.given_up:
        page.paragraph(certificate.sentence())
        return
    if not certificate.passed:
        page.paragraph("FAILED: " + " ".join(certificate.why), "red")
    page.table([[OURS, f"{certificate.candidate_error:.2e}"], ["eager", f"{certificate.eager_error:.2e}"]],
               head=("", "worst relative error (rms)"))
    for text, style in checks(certificate):
        page.paragraph(text, style, hanging=4)


def checks(certificate: Certificate) -> list[tuple[str, str]]:
    """What was tried, what held, and what was skipped and why, as sentences with their styles."""
    gating = [trial for trial in certificate.trials if trial.gates]
    passed = sum(trial.passed for trial in gating)
    said = [(f"{passed} of {units.counted(len(gating), 'trial')} passed: {_kinds(trial.plan for trial in gating)}", "")]
    shown = [trial.plan for trial in certificate.trials if not trial.gates]
    if shown:
        said.append((f"shown, not judged (the rewriting needs finite values): {_kinds(shown)}", ""))
    facts = []
    if certificate.deterministic is not None:
        facts.append("repeated calls gave the same bits" if certificate.deterministic
                     else "repeated calls gave different bits")
    facts.append("state_dict loads both ways" if certificate.state_copied
                 else "state_dict does not fit: " + "; ".join(certificate.state_problems))
    if certificate.uses_randomness:
        facts.append("the model draws random numbers")
    for found in (certificate, certificate.recorded):
        if found is not None and found.gradients is not None:
            facts.append("gradients agree" if found.gradients.passed else "gradients differ")
    said.append(("; ".join(facts), ""))
    if certificate.recorded is not None:
        said.append((f"with gradients recorded: {_kinds(trial.plan for trial in certificate.recorded.trials)}", ""))
    if certificate.sampled:
        said.append(("sample: float64 covered two batch entries, which the outputs depend on separately; "
                     "eager covered the others", ""))
    trials = (*certificate.trials, *(certificate.recorded.trials if certificate.recorded is not None else ()))
    said += [(f"note: {note}", "") for note in dict.fromkeys(note for trial in trials for note in trial.notes)]
    skipped: dict[str, list[TrialPlan]] = {}
    for entry in certificate.skipped:
        skipped.setdefault(entry.why, []).append(entry.plan)
    return said + [(f"skipped: {_kinds(plans)} ({why})", "yellow") for why, plans in skipped.items()]


def _kinds(plans: Iterable[TrialPlan]) -> str:
    """``as given (2), normal with other parameters``; "none" for no trial."""
    kinds = Counter(plan.kind for plan in plans)
    words = [kind + (f" ({count})" if count > 1 else "") for kind, count in kinds.items()]
    return ", ".join(words) or "none"


def times(page: Page, timing: Timing, title: str) -> None:
    """Medians of calls on flushed caches and of calls in a row side by side, speed-ups with their intervals, spread,
    and the share of the roofline."""
    page.heading(title)
    styles = ["green" if name == CANDIDATE else "" for name in timing.entries]
    rows = []
    for name, entry in timing.entries.items():
        found = timing.speed_up(name)
        rows.append([SHORT.get(name, name), units.seconds(entry.median), _seconds(entry.back_to_back_seconds),
                     *(_cells(found) if found is not None else ("", ""))])
    head = ["", "cold", "in a row", "speed-up", "95 %"]
    if not timing.ratios:
        head, rows = head[:3], [row[:3] for row in rows]
    page.table(rows, head=head, styles=styles)
    page.paragraph("cold: caches flushed before each call; in a row: warm, with what the host does"
                   + (f"; speed-up: of {OURS} over each, cold" if timing.ratios else ""), "dim", hanging=4)
    rows = []
    for name, entry in timing.entries.items():
        share = timing.share_of_floor.get(name)
        rows.append([SHORT.get(name, name), units.span(entry.lower_quartile, entry.upper_quartile),
                     str(entry.repetitions), _seconds(entry.waited_seconds),
                     f"{100 * share:.3g} %" if share is not None else ""])
    page.table(rows, head=["", "25-75 %", "runs", "latency", "% of\nroofline"], styles=styles)
    for text, style in doubts(timing):
        page.paragraph(text, style, hanging=4)


def doubts(timing: Timing) -> list[tuple[str, str]]:
    """How the kernels are launched, which times do not hold and why, as sentences with their styles."""
    said: list[tuple[str, str]] = []
    for name in timing.ratios:
        found = timing.speed_up(name)
        if found is not None and found.verdict == UNKNOWN:
            said.append((f"{SHORT.get(name, name)}: speed-up {UNKNOWN} ({found.why})", "yellow"))
    if found := launch_sentence(timing):
        said.append((found, ""))
    said += [(f"{name}: no time, {why}", "yellow") for name, why in timing.failures.items()]
    if timing.compile_seconds is not None and not timing.failures:
        said.append((f"torch.compile took {units.seconds(timing.compile_seconds)} to compile", "dim"))
    wrong = "is faster than the roofline: the roofline or this time cannot be right"
    said += [(f"{SHORT.get(name, name)} {wrong}", "yellow") for name in timing.below_floor]
    return said + [(f"{SHORT.get(name, name)}: {entry.note}", "yellow") for name, entry in timing.entries.items()
                   if entry.note]


def _seconds(value: float | None) -> str:
    return units.seconds(value) if value is not None else ""


def _cells(found: SpeedUp) -> tuple[str, str]:
    """The speed-up and its interval, where they are numbers to go by."""
    if found.verdict == UNKNOWN:
        return "-", "-"
    tie = " tie" if found.verdict == TIE else ""
    return f"{units.digits(found.value)}x{tie}", f"{units.digits(found.low)}-{units.digits(found.high)}"


def launch_sentence(timing: Timing) -> str:
    """How the candidate's kernels are launched, where there was a choice, and what that gains; "" without one."""
    if not timing.launches:
        return ""
    graph, direct = timing.launches[GRAPH], timing.launches[DIRECT]
    if graph.waited_seconds and direct.waited_seconds:
        which, found = "the latency of a call is", (graph.waited_seconds, direct.waited_seconds)
    else:
        which, found = "the device takes", (graph.median, direct.median)
    times = f"{which} {units.seconds(found[0])} by a graph and {units.seconds(found[1])} without"
    if timing.launch == DIRECT:
        return f"Its kernels are launched one by one: {times}."
    kept = f", which keeps {units.memory(timing.graph_bytes)} of the device's memory" if timing.graph_bytes else ""
    return f"A call is one launch, of a CUDA graph{kept}: {times}."


def speed_sentence(timing: Timing) -> str:
    """``41.2x over eager (95 % interval 40.1 to 42.3), 12x over torch.compile (...)``; "" without ratios. Where no
    number holds, why."""
    found = [up for name in timing.ratios if (up := timing.speed_up(name)) is not None]
    if found and all(up.verdict == UNKNOWN and up.why == found[0].why for up in found):
        return f"{UNKNOWN} ({found[0].why})"
    return ", ".join(speed_words(up, first=up is found[0]) for up in found)


def speed_words(found: SpeedUp, *, first: bool = True) -> str:
    """One speed-up in words."""
    if found.verdict == UNKNOWN:
        return f"over {found.baseline} {UNKNOWN} ({found.why})"
    return _ratio_words(Ratio(found.baseline, CANDIDATE, found.value, found.low, found.high, 0), first=first)


def _ratio_words(found: Ratio, *, first: bool = True) -> str:
    interval = f"{'95 % interval ' if first else ''}{units.digits(found.low)} to {units.digits(found.high)}"
    tie = "a tie, " if found.is_tie() else ""
    return f"{units.digits(found.value)}x over {found.slower} ({tie}{interval})"


def loss_sentence(timing: Timing) -> str:
    """The speed of kernels that were given up, and where calls on flushed caches take no longer, the calls that do; ""
    where none were timed."""
    own, found = timing.given_up, timing.given_up_ratio
    if own is None or found is None:
        return ""
    walls = wall_seconds(timing.entries[EAGER], own)
    if found.value < 1.0 or walls is None:
        return _ratio_words(found)
    eager, seconds, which = walls
    return f"{_ratio_words(found)} on flushed caches, but {which} takes {units.seconds(seconds)}, eager's " \
        f"{units.seconds(eager)}"
