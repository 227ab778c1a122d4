"""A certificate of both gradient modes: a call may compute otherwise where it records gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.certificate import Certificate, certify
from kernelwright.verify.kept import Kept
from kernelwright.verify.observe import first_line
from kernelwright.verify.plan import Plan
from kernelwright.verify.records import Skipped
from kernelwright.verify.state import float64_copy

#: Trials in which gradients are recorded: those that tell most. The kernels are those of the others.
RECORDED = 3


def certify_both(
    make_model: Callable[[], nn.Module],
    make_candidate: Callable[[], nn.Module],
    make_inputs: Callable[[int], Sequence[Any]],
    *,
    plan: Plan,
    make_float64: Callable[[nn.Module], nn.Module] = float64_copy,
    recorded: int = RECORDED,
    recordings: tuple[bool, ...] = (False, True),
    kept: Kept | None = None,
    begun: Certificate | None = None,
) -> Certificate:
    """The certificate of ``plan`` under no_grad and, where that passes, with gradients recorded and compared in the
    first ``recorded`` trials for half of the budget (`Certificate.recorded`). A candidate that is the original
    computation has nothing to record. ``recordings``: the gradient modes that count, where not both. Arguments and what
    is raised are those of `certify`, but for ``plan.recording``; ``kept`` without ``most_bytes``, as trials in the two
    modes differ. ``begun`` is the certificate of the same candidate, which is continued.
    """
    kept = kept or Kept()
    if len(recordings) == 1:
        return certify(make_model, make_candidate, make_inputs, plan=replace(plan, recording=recordings[0]),
                       make_float64=make_float64, kept=kept, begun=begun)
    before = begun.recorded if begun is not None else None
    first = certify(make_model, make_candidate, make_inputs, plan=replace(plan, recording=False),
                    make_float64=make_float64, kept=kept,
                    begun=begun.without_recorded() if begun is not None else None)
    if plan.unchanged or not first.passed:
        return first
    kept.separate = False
    try:
        second = certify(
            make_model, make_candidate, make_inputs, make_float64=make_float64, kept=kept, begun=before, plan=replace(
                plan, recording=True, trials=plan.trials[:recorded], repeats=0, budget_seconds=plan.budget_seconds / 2))
    except Exception as error:  # what is recorded for gradients may be more than the device has
        if not is_out_of_memory(error):
            raise
        why = f"with gradients recorded: not enough memory: {first_line(error)}"
        return replace(first, skipped=(*first.skipped, *(Skipped(trial, why) for trial in plan.trials[:recorded])))
    return replace(first, recorded=second, passed=second.passed, why=second.why, separate=second.separate)
