"""The two measured sections of the report: accuracy (VERIFY) and time (TIME)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernelwright.report import units
from kernelwright.report.layout import Page
from kernelwright.timing import Timing
from kernelwright.timing.baselines import CANDIDATE, DIRECT, EAGER, GRAPH, wall_seconds
from kernelwright.verify import Certificate, TrialPlan

#: How the candidate is called in the report.
OURS = "ModelNew"


def accuracy(page: Page, certificate: Certificate, title: str) -> None:
    """The certificate: verdict, errors beside eager's own, what was tried, what was skipped and why."""
    page.heading(title)
    if not certificate.passed:
        page.paragraph("FAILED: " + " ".join(certificate.why), "red")
    page.table([[OURS, f"{certificate.candidate_error:.2e}"], ["eager", f"{certificate.eager_error:.2e}"]],
               head=("", "worst error (rms of the error / rms of the output)"))
    gating = [trial for trial in certificate.trials if trial.gates]
    passed = sum(trial.passed for trial in gating)
    page.paragraph(f"{passed} of {units.counted(len(gating), 'trial')} passed: "
                   f"{_kinds(trial.plan for trial in gating)}", hanging=4)
    shown = [trial.plan for trial in certificate.trials if not trial.gates]
    if shown:
        page.paragraph(f"shown, not judged (the rewriting needs finite values): {_kinds(shown)}", hanging=4)
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
    page.paragraph("; ".join(facts), hanging=4)
    if certificate.recorded is not None:
        page.paragraph(f"with gradients recorded: {_kinds(trial.plan for trial in certificate.recorded.trials)}",
                       hanging=4)
    if certificate.sampled:
        page.paragraph("sample: float64 covered two batch entries, which the outputs depend on separately; "
                       "eager covered the others", hanging=4)
    trials = (*certificate.trials, *(certificate.recorded.trials if certificate.recorded is not None else ()))
    for note in dict.fromkeys(note for trial in trials for note in trial.notes):
        page.paragraph(f"note: {note}", hanging=4)
    skipped: dict[str, list[TrialPlan]] = {}
    for entry in certificate.skipped:
        skipped.setdefault(entry.why, []).append(entry.plan)
    for why, plans in skipped.items():
        page.paragraph(f"skipped: {_kinds(plans)} ({why})", "yellow", hanging=4)


def _kinds(plans: Iterable[TrialPlan]) -> str:
    """``as given (2), normal with other parameters``; "none" for no trial."""
    kinds = Counter((plan.distribution, plan.redrawn_parameters) for plan in plans)
    words = [kind + (" with other parameters" if redrawn else "") + (f" ({count})" if count > 1 else "")
             for (kind, redrawn), count in kinds.items()]
    return ", ".join(words) or "none"


def times(page: Page, timing: Timing, title: str) -> None:
    """Medians with their spread, ratios with their intervals, and the share of the floor."""
    page.heading(title)
    rows, styles = [], []
    for name, entry in timing.entries.items():
        ratio = timing.ratios.get(name)
        share = timing.share_of_floor.get(name)
        rows.append([
            OURS if name == CANDIDATE else name,
            units.seconds(entry.median),
            f"{units.seconds(entry.lower_quartile)} to {units.seconds(entry.upper_quartile)}",
            str(entry.repetitions),
            units.seconds(entry.waited_seconds) if entry.waited_seconds is not None else "",
            f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})" + (" tie" if ratio.is_tie() else "")
            if ratio is not None else "",
            f"{100 * share:.3g} %" if share is not None else "",
        ])
        styles.append("green" if name == CANDIDATE else "")
    head = ["", "median", "middle half", "runs", "waited for", f"over {OURS} (95 %)", "of the limit"]
    if not timing.ratios:
        head, rows = head[:5] + head[6:], [row[:5] + row[6:] for row in rows]
    page.table(rows, head=head, styles=styles)
    if found := launch_sentence(timing):
        page.paragraph(found, hanging=4)
    for name, why in timing.failures.items():
        page.paragraph(f"{name}: no time, {why}", "yellow", hanging=4)
    if timing.compile_seconds is not None and not timing.failures:
        page.paragraph(f"torch.compile took {units.seconds(timing.compile_seconds)} to compile", "dim")
    for name in timing.below_floor:
        page.paragraph(f"{OURS if name == CANDIDATE else name} is faster than the limit: the limit or this time "
                       "cannot be right", "yellow", hanging=4)
    for name, entry in timing.entries.items():
        if entry.note:
            page.paragraph(f"{OURS if name == CANDIDATE else name}: {entry.note}", "yellow", hanging=4)


def launch_sentence(timing: Timing) -> str:
    """How the candidate's kernels are launched, where there was a choice, and what that gains; "" without one."""
    if not timing.launches:
        return ""
    graph, direct = timing.launches[GRAPH], timing.launches[DIRECT]
    if graph.waited_seconds and direct.waited_seconds:
        which, found = "a call that is waited for takes", (graph.waited_seconds, direct.waited_seconds)
    else:
        which, found = "the device takes", (graph.median, direct.median)
    times = f"{which} {units.seconds(found[0])} by a graph and {units.seconds(found[1])} without"
    if timing.launch == DIRECT:
        return f"Its kernels are launched one by one: {times}."
    kept = f", which keeps {units.memory(timing.graph_bytes)} of the device's memory" if timing.graph_bytes else ""
    return f"A call is one launch, of a CUDA graph{kept}: {times}."


def speed_sentence(timing: Timing) -> str:
    """``41.2x as fast as eager (40.1 to 42.3), 12x as fast as torch.compile (...)``; "" without ratios."""
    parts = []
    for name, ratio in timing.ratios.items():
        spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
        if ratio.is_tie():
            parts.append(f"ties with {name} ({ratio.value:.2f}x, {spread})")
        else:
            parts.append(f"{ratio.value:.2f}x as fast as {name} ({spread})")
    return ", ".join(parts)


def loss_sentence(timing: Timing) -> str:
    """The speed of kernels that were dropped, and where the device takes no longer, the host's calls that do."""
    walls = wall_seconds(timing)
    if timing.ratios[EAGER].value < 1.0 or walls is None:
        return speed_sentence(timing)
    eager, own, which = walls
    return f"{speed_sentence(timing)} alone, but {which} takes {units.seconds(own)}, eager's {units.seconds(eager)}"
