"""The certificate: each trial with its errors beside eager's own, as far as they were kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernelwright.report.html.scale import Logarithmic, around
from kernelwright.report.measured import OURS, checks
from kernelwright.verify import Certificate
from kernelwright.verify.records import OutputError, Trial
from kernelwright.verify.statistics import SPREAD

#: A trial has a row for each of so many outputs, the worst first.
MOST_OUTPUTS = 3
TRIAL_HEAD = ("trial", "output", "verdict", f"{OURS}, rms", "eager, rms", f"{OURS}, largest", "eager, largest",
              "errors of single elements")
_SHARES = ", ".join(f"{100 * share:g} %" for share in SPREAD)


def accuracy(certificate: Certificate) -> dict[str, Any]:
    """The verdict, the sentences of the terminal's report, and a table of trials with a strip of errors each."""
    trials = [(trial, False) for trial in certificate.trials]
    trials += [(trial, True) for trial in (certificate.recorded.trials if certificate.recorded is not None else ())]
    axis = around((error for trial, _ in trials for output in _worst(trial)
                   for error in (*output.spread, *output.eager_spread)), 0.0, 100.0)
    rows = [_row(trial, output, recorded, axis) for trial, recorded in trials for output in _worst(trial) or (None,)]
    return {
        "passed": certificate.passed, "sentence": certificate.sentence(), "why": certificate.why,
        "checks": [] if certificate.given_up else checks(certificate), "rows": [] if certificate.given_up else rows,
        "axis": f"errors of single elements over the output's rms, from {axis.low:.1e} to {axis.high:.1e}, each factor "
                f"as wide: up to {_SHARES} of a sample of elements stay below the marks of a line; above "
                f"{OURS}, below eager" if axis is not None else "",
    }


def _worst(trial: Trial) -> list[OutputError]:
    """The outputs of a trial that were compared, those with the largest errors first."""
    outputs = trial.comparison.outputs if trial.comparison is not None else ()
    return sorted(outputs, key=lambda output: (output.passed, -output.relative))[:MOST_OUTPUTS]


def _row(trial: Trial, output: OutputError | None, recorded: bool, axis: Logarithmic | None) -> dict[str, Any]:
    words = trial.plan.words() + (", gradients recorded" if recorded else "")
    verdict = "passed" if trial.passed else "failed" if trial.gates else "shown, not judged"
    if output is None:
        said = trial.problems[0] if trial.problems else "nothing was compared"
        return {"cells": [words, "", verdict, said, "", "", ""], "passed": trial.passed, "strips": [], "words": ""}
    same = output.reference_rms == 0.0 and output.passed
    figures = ["eager's bits, or equal"] + [""] * 3 if same else [
        f"{value:.2e}" for value in (output.relative, output.eager_relative, output.worst_absolute,
                                     output.eager_worst_absolute)]
    strips = [(OURS, output.spread), ("eager", output.eager_spread)] if output.spread and axis is not None else []
    return {"cells": [words, output.path, verdict, *figures], "passed": trial.passed,
            "strips": [_strip(name, spread, axis) for name, spread in strips],
            "words": "; ".join(f"{name} {_listed(spread)}" for name, spread in strips)}


def _strip(name: str, spread: Iterable[float], axis: Logarithmic | None) -> dict[str, Any]:
    """The marks of one line in percent of the axis; what is zero stands at its beginning."""
    assert axis is not None
    return {"name": name, "marks": [f"{axis.at(value) if value > 0 else 0.0:.2f}" for value in spread]}


def _listed(spread: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:g} %: {value:.1e}" for share, value in zip(SPREAD, spread))
