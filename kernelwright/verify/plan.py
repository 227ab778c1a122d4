"""What a certification tries, and what it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.tolerance import Tolerance


def default_trials(seed: int = 0) -> tuple[TrialPlan, ...]:
    """The trials in the order in which they tell most, so that a short budget drops the least."""
    kinds = (
        ("as given", False),
        ("normal", True),
        ("as given", True),
        ("shifted", False),
        ("with NaN", False),
        ("with Inf", False),
        ("signed zeros", False),
        ("tiny", False),
        ("huge", False),
        ("heavy-tailed", False),
        ("large", False),
        ("offset", False),
        ("small", True),
        ("scaled", False),
        ("sparse", False),
        ("wide", False),
        ("zeros", False),
        ("denormal", False),
        ("as given", False),
    )
    return tuple(TrialPlan(seed + index, kind, redrawn) for index, (kind, redrawn) in enumerate(kinds))


@dataclass(frozen=True)
class Plan:
    """What a certification tries.

    ``tolerance`` holds for the problem's own inputs. Derived distributions look for faults, not for digits,
    and are often badly conditioned: they may have ``derived_multiple`` times eager's error and, where eager
    has no correct digit, ``derived_noise_units`` times the absolute tolerance. ``repeats`` counts the further
    candidate calls of the first trial (and one in the second) that must give the same bits.
    ``sample_axis0`` is for callers who proved that outputs depend on each entry of axis 0 separately: float64
    then covers a random pair. ``batched_arguments`` says which positional inputs have that axis (by default,
    those with the first input's size). ``informative`` names distributions that are reported without
    deciding. ``unchanged`` is for candidates that are the original computation: eager's own result is the
    reference, and float64 does not run. ``require_state`` asks that the model's state_dict fits the candidate.
    ``check_gradients``: gradients are compared on the first trial's inputs, which ``gradient_inputs`` may make (small
    ones) from a seed. ``recording``: calls record gradients, and these are compared more strictly (see
    `check_gradients`), also in the first trial with other parameters where the budget does. ``parameters_alone``: in
    the first trial they are compared once more where inputs require none. ``lenient`` names kinds of a trial's problems
    that are noted and decide nothing: what a caller does not ask of a candidate. The first ``required`` trials run
    whatever the budget, the first ``wanted`` until three times the budget is over. ``stop_at_failure``: the first trial
    that fails ends the certification, where nobody asks in what else the candidate fails. ``must_fit``: a candidate
    that says, twice, that it lacks memory ends it, too, in whatever trial: anybody can say so.
    """

    trials: tuple[TrialPlan, ...] = default_trials()
    budget_seconds: float = 60.0
    tolerance: Tolerance = field(default_factory=Tolerance)
    derived_multiple: float = 8.0
    derived_noise_units: float = 100.0
    repeats: int = 2
    poison: bool = True
    sample_axis0: bool = False
    batched_arguments: tuple[bool, ...] | None = None
    informative: frozenset[str] = frozenset()
    unchanged: bool = False
    require_state: bool = True
    check_gradients: bool = False
    recording: bool = False
    parameters_alone: bool = False
    lenient: frozenset[str] = frozenset()
    gradient_inputs: Callable[[int], Sequence[Any]] | None = None
    required: int = 1
    wanted: int = 0
    stop_at_failure: bool = False
    must_fit: bool = False

    def tolerance_for(self, distribution: str) -> Tolerance:
        """What an error on inputs of ``distribution`` is held against."""
        if distribution == AS_GIVEN or self.tolerance.unit is not None:  # eager's error is then one of these inputs
            return self.tolerance
        return replace(self.tolerance, multiple=max(self.tolerance.multiple, self.derived_multiple),
                       noise_units=max(self.tolerance.noise_units, self.derived_noise_units))
