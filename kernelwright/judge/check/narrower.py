"""Trials that say more about a candidate that failed: what it is wrong with, and where it is right all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelwright.problem import Problem
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS, zero_half
from kernelwright.verify.flatten import tensors_of
from kernelwright.verify.plan import Plan
from kernelwright.verify.records import TrialPlan

#: Certifies the candidate under a plan; trials of the certificate that is given are not run again.
Certified = Callable[[Plan, Certificate | None], Certificate]


def told_apart(certified: Certified, plan: Plan, certificate: Certificate) -> Certificate:
    """``certificate``, where it ends at a trial with other parameters and other values at once, with two more trials,
    of the problem's own values with other parameters and without: they say which of it the candidate is wrong with."""
    failing, ran = _failing(certificate), [trial.plan for trial in certificate.trials]
    both = [trial for trial in failing if trial.redrawn_parameters and trial.distribution != AS_GIVEN]
    own = [trial for trial in plan.trials if trial.distribution == AS_GIVEN and not trial.opened and trial not in ran]
    more = [next((trial for trial in own if trial.redrawn_parameters is redrawn), None) for redrawn in (True, False)]
    more = [trial for trial in more if trial is not None]
    if not plan.stop_at_failure or not more or not both or both != failing:
        return certificate
    return certified(replace(plan, trials=(*ran, *more), stop_at_failure=False), certificate)


def on_triangular(certified: Certified, plan: Plan, problem: Problem, seed: int, certificate: Certificate
                  ) -> tuple[Certificate, str] | None:
    """The certificate, and a limit in words, of a candidate that is right where matrices that the problem makes
    triangular stay so, as its text may say that they are; None where there are none, or that is not enough."""
    if any(trial.distribution == AS_GIVEN for trial in _failing(certificate)):
        return None
    words = [f"input {number} is zero {half} its diagonal" for number, tensor in enumerate(tensors_of(
        problem.make_inputs(seed))) if (half := zero_half(tensor)) is not None]
    if not words:
        return None
    trials = tuple(replace(trial, triangular=trial.distribution != AS_GIVEN) for trial in plan.trials)
    found, limit = certified(replace(plan, trials=trials), None), f"only where {' and '.join(words)}, as in the " \
        "problem's own inputs"
    failing = _failing(found)
    if failing and all(DISTRIBUTIONS[trial.distribution].plants for trial in failing):
        # NaN times a zero that the candidate leaves out, as it may: the model's result has it, and no number is wrong.
        numbers = tuple(trial for trial in trials if not DISTRIBUTIONS[trial.distribution].plants)
        found, limit = certified(replace(plan, trials=numbers), None), f"{limit}, and where nothing is NaN or Inf"
    return (found, limit) if found.passed else None


def _failing(certificate: Certificate) -> list[TrialPlan]:
    return [trial.plan for trial in certificate.trials if trial.gates and not trial.passed]
