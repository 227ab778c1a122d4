"""Probes: what results that nobody computed are worth under the rule by which candidates are judged.

A problem may be unable to tell right from wrong on its own inputs: ReLU on numbers in [0, 1) is the identity, a deep
network with its first weights gives its biases whatever it is shown, the mean of a softmax is a constant. Each probe
stands for a candidate that does not compute; a trial that refuses it is worth running.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.certificate import Plan, default_trials
from kernelwright.verify.compare import compare
from kernelwright.verify.computation import settled
from kernelwright.verify.distributions import DISTRIBUTIONS
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.flatten import flatten, map_tensors, tensors_of
from kernelwright.verify.floating import NOISE_MARGIN
from kernelwright.verify.observe import call, seed_all
from kernelwright.verify.records import Comparison, Refused, TrialPlan
from kernelwright.verify.state import apart
from kernelwright.verify.tolerance import Tolerance
from kernelwright.verify.trial import Bench

#: Candidates that do not compute: a problem on which one of them passes every trial is trivial.
TRIVIAL = {
    "zeros": "zeros",
    "constant": "one number, learnt from other inputs",
    "identity": "an input as it is",
    "replay": "a stored result of other inputs",
}
#: Candidates that compute without looking at everything. Right where the model does not look, either.
PARTIAL = {
    "blind": "the result of other inputs of the same kind",
    "frozen": "the result of the parameters of construction",
}
#: Between the seeds of a trial's inputs and of the other inputs that its probes are taken from.
_OTHER = 7919
_SAMPLE = 1 << 20
#: Distributions for candidates from elsewhere.
_FURTHER = ("tied", "negative")
#: Probes that are made whatever the budget where the first one is not telling.
_LEAST = 3
#: Probes that are made whatever the budget while a candidate that does not compute has passed them all, and on which
#: PROBLEM-TRIVIAL rests at least: other seeds and parameters, both signs, large, small and sparse numbers.
ENOUGH = 9


@dataclass(frozen=True, slots=True)
class Probed:
    """One trial's probes. ``redrawn``: it drew parameters or running statistics anew. ``refused`` and ``passed`` name
    probes; one that does not apply (no input has the output's shape, nothing was drawn anew) is in neither.
    ``eager_error`` is eager's worst relative error against the reference. ``seconds``: what a candidate's trial on
    these inputs takes at least."""

    plan: TrialPlan
    redrawn: bool
    refused: tuple[str, ...]
    passed: tuple[str, ...]
    eager_error: float
    reference: str
    seconds: float

    @property
    def telling(self) -> bool:
        """Whether every candidate that does not compute is refused."""
        return not set(self.passed) & TRIVIAL.keys()

    @property
    def name(self) -> str:
        """The trial without its seed: ``normal, other parameters``."""
        return self.plan.distribution + (", other parameters" if self.redrawn else "")


def judged_trials(seed: int) -> tuple[TrialPlan, ...]:
    """The trials of a judged candidate in their usual order: those of every certificate, then ties and negative
    values."""
    usual = default_trials(seed)
    return (*usual, *(TrialPlan(seed + len(usual) + i, kind) for i, kind in enumerate(_FURTHER)))


def run_probes(problem: Problem, bench: Bench, plan: Plan, trials: Sequence[TrialPlan], budget_seconds: float
               ) -> tuple[tuple[Probed, ...], bool]:
    """Probe ``trials`` in their order, until every probe was refused, two trials are telling and other inputs of one
    distribution give other outputs, or time is over. Returns what was found, and whether the time sufficed.

    The first always runs, three where the problem's own inputs do not tell, and `ENOUGH` while no trial has refused
    every candidate that does not compute. Trials with planted NaN or Inf, and
    those in which the model itself fails or memory does not do, are left out. A refusal counts only where finite values
    are wrong: NaN is easily copied without computing. The model's state is restored. Call it under
    ``torch.random.fork_rng``.
    """
    started, slowest = clock(), 0.0
    found: list[Probed] = []
    drawn = _may_be_drawn(bench.eager)
    learnt = _learnt(problem, bench, trials[0].seed)
    complete = True
    usual = sorted((t for t in trials if not DISTRIBUTIONS[t.distribution].plants), key=lambda t: _rank(t, trials))
    tried: set[TrialPlan] = set()
    while trial := _next(usual, found, drawn, tried):
        weak = len(found) < _LEAST and any(not p.telling for p in found[:1])
        weak |= len(found) < ENOUGH and not {n for p in found for n in p.refused} >= _passing(found)
        if found and not weak and clock() - started + slowest > budget_seconds:
            complete = False
            break
        tried.add(trial)
        before = clock()
        try:
            probed = _probe(problem, bench, plan, trial, drawn and trial.redrawn_parameters, learnt)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            probed, complete = None, False
        slowest = max(slowest, clock() - before)
        if probed is not None:
            found.append(probed)
    bench.original.apply(bench.eager)
    return tuple(found), complete


def _passing(found: Sequence[Probed]) -> set[str]:
    """Candidates that do not compute and passed a trial."""
    return {name for p in found for name in p.passed} & TRIVIAL.keys()


def _rank(trial: TrialPlan, trials: Sequence[TrialPlan]) -> int:
    """Its place, but large inputs come third: they tell most where the problem's own tell nothing."""
    return trials.index(trial) if trial.distribution != "large" else 1


def _next(usual: Sequence[TrialPlan], found: Sequence[Probed], drawn: bool, tried: Collection[TrialPlan]
          ) -> TrialPlan | None:
    """The trial to probe after what was found, or None where nothing is open."""
    waiting = {name for p in found for name in p.passed} - {name for p in found for name in p.refused}
    varied = any("blind" in p.refused and not p.redrawn for p in found)
    open_ = waiting or not varied or sum(p.telling for p in found) < 2
    open_ = open_ or (drawn and not any(p.redrawn for p in found))
    left = [t for t in usual if t not in tried]
    if left:
        return left[0] if open_ else None
    if "frozen" not in waiting:
        return None
    # Parameters may matter only where inputs do: the distributions that vary the outputs, with other parameters.
    unused = max(t.seed for t in usual) + 1
    more = [TrialPlan(unused + i, p.plan.distribution, True) for i, p in enumerate(found)
            if "blind" in p.refused and not p.redrawn]
    return next((t for t in more if t not in tried), None)


def _may_be_drawn(model: nn.Module) -> bool:
    """Whether `redraw` changes anything in a model."""
    return any(True for _ in model.parameters()) or any(
        name.rpartition(".")[2] in ("running_mean", "running_var") for name, _ in model.named_buffers())


def _learnt(problem: Problem, bench: Bench, seed: int) -> Any:
    """The model's outputs for other inputs, with the parameters of construction; None where it fails on them."""
    bench.original.apply(bench.eager)
    seed_all(seed + _OTHER)
    called = call(bench.eager, list(problem.make_inputs(seed + _OTHER)))
    return apart(called.outputs, bench.eager) if called.error is None else None


def _inputs(problem: Problem, trial: TrialPlan, offset: int = 0) -> list[Any]:
    seed = trial.seed + offset
    return inputs_of(trial, problem.make_inputs, seed)


def _set(bench: Bench, trial: TrialPlan) -> None:
    bench.original.apply(bench.eager)
    set_parameters(bench.eager, trial)


def _probe(problem: Problem, bench: Bench, plan: Plan, trial: TrialPlan, redrawn: bool, learnt: Any
           ) -> Probed | None:
    started = clock()
    inputs = _inputs(problem, trial)
    _set(bench, trial)
    expected = bench.expect(inputs, trial.seed, keep_as=trial, extreme=DISTRIBUTIONS[trial.distribution].extreme)
    if isinstance(expected, Refused):
        return None
    tolerance = plan.tolerance_for(trial.distribution)
    eager = compare(expected.outputs, expected.outputs, expected.reference.outputs, tolerance=tolerance)
    seconds = clock() - started
    verdicts: dict[str, bool] = {}

    def judge(name: str, outputs: Any) -> None:
        if outputs is not None:
            right, exact = expected.outputs, expected.reference.outputs
            if expected.reference.lost:
                outputs, right, exact = settled(outputs, right, exact)
            verdicts[name] = _far_off(outputs, exact, eager, tolerance) or _refuses(
                compare(outputs, right, exact, tolerance=tolerance))

    judge("zeros", map_tensors(expected.outputs, lambda t: torch.zeros((), dtype=t.dtype, device=t.device)
                               .expand(t.shape)))
    judge("constant", None if learnt is None else _filled(expected.outputs, constants_of(learnt, expected.outputs)))
    judge("identity", _filled(expected.outputs, nearest_inputs(inputs, expected.outputs)))
    judge("replay", learnt)
    _set(bench, trial)
    judge("blind", _outputs(bench, _inputs(problem, trial, _OTHER), trial.seed))
    if redrawn:
        bench.original.apply(bench.eager)
        judge("frozen", _outputs(bench, inputs, trial.seed))
    outputs = [o for o in eager.outputs if o.reference_rms and not o.is_noise]
    return Probed(trial, redrawn, tuple(n for n, refused in verdicts.items() if refused),
                  tuple(n for n, refused in verdicts.items() if not refused),
                  max((o.eager_relative for o in outputs), default=0.0), expected.reference.words, seconds)


def _outputs(bench: Bench, inputs: list[Any], seed: int) -> Any:
    seed_all(seed)
    called = call(bench.eager, inputs)
    return called.outputs if called.error is None else None


def _refuses(found: Comparison) -> bool:
    """Whether a comparison fails for more than where NaN and Inf stand."""
    return bool(found.structure) or any(
        len(o.problems) > (1 if o.misplaced_nonfinite else 0) for o in found.outputs)


def _far_off(outputs: Any, reference: Any, eager: Comparison, tolerance: Tolerance) -> bool:
    """Whether a sample of the elements is enough to know that a comparison fails: most probes are wrong everywhere."""
    leaves, wanted = flatten(outputs), flatten(reference)
    for found in eager.outputs:
        value, right = leaves.get(found.path), wanted.get(found.path)
        if not isinstance(value, torch.Tensor) or not isinstance(right, torch.Tensor) or value.shape != right.shape \
                or not value.dtype.is_floating_point or value.numel() <= _SAMPLE:
            continue
        limits = tolerance.for_dtype(value.dtype)
        some = torch.linspace(0, value.numel() - 1, _SAMPLE // 4, dtype=torch.float64, device=value.device).long()
        at = torch.unravel_index(some, value.shape)
        got, expected = value[at].double(), right.to(value.device)[at].double()
        units = (got - expected).abs() / (limits.atol + limits.rtol * expected.abs())
        # The most that the rule may allow a single element.
        most = max(1.0, limits.noise_units, NOISE_MARGIN * limits.multiple * found.units)
        if bool((units[torch.isfinite(units)] > most).any()):
            return True
    return False


def constants_of(learnt: Any, outputs: Any) -> list[torch.Tensor] | None:
    """For each of ``outputs`` the mean (integers: the first value) of the same one in ``learnt``, as a tensor without
    axes of its dtype; None where the two have not the same number of tensors."""
    known, wanted = tensors_of(learnt), tensors_of(outputs)
    if len(known) != len(wanted):
        return None
    values = []
    for other, like in zip(known, wanted, strict=True):
        sample = other.flatten()[:: max(1, other.numel() // _SAMPLE)]
        finite = sample[torch.isfinite(sample)].double() if other.dtype.is_floating_point else sample[:1]
        values.append((finite.mean() if other.dtype.is_floating_point and finite.numel() else
                       finite[0] if finite.numel() else torch.zeros(())).to(like))
    return values


def nearest_inputs(inputs: Any, outputs: Any) -> list[torch.Tensor] | None:
    """For each of ``outputs`` the input of its shape and dtype that comes nearest; None where one has no such input."""
    given, chosen = tensors_of(inputs), []
    for leaf in tensors_of(outputs):
        fitting = [t for t in given if t.shape == leaf.shape and t.dtype == leaf.dtype]
        if not fitting:
            return None
        chosen.append(min(fitting, key=lambda t: _distance(t, leaf)))
    return chosen or None


def _filled(outputs: Any, leaves: Sequence[torch.Tensor] | None) -> Any:
    """``outputs`` with other tensors in their places."""
    if leaves is None:
        return None
    waiting = iter(leaves)
    return map_tensors(outputs, lambda t: next(waiting).expand(t.shape))


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    step = max(1, left.numel() // _SAMPLE)
    difference = (left.flatten()[::step].double() - right.flatten()[::step].double()).abs()
    return float(difference.nan_to_num(0.0, posinf=0.0).mean()) if difference.numel() else 0.0


def needed_trials(found: Sequence[Probed], count: int = 2) -> tuple[TrialPlan, ...]:
    """The trials that must not be left out: the first ``count`` telling ones (sizes are equal, and so are costs), and
    more until every probe that any trial refuses is refused by one of them."""
    chosen = [p for p in found if p.telling][:count]
    missing = {name for p in found for name in p.refused} - {name for p in chosen for name in p.refused}
    while missing:
        best = max(found, key=lambda p: len(missing & set(p.refused)))
        chosen.append(best)
        missing -= set(best.refused)
    return tuple(p.plan for p in found if p in chosen)
