"""How far back what a model is given shows in its results: whether a candidate that forgets it would be refused.

On most inputs a recurrence forgets within some steps, and a candidate that leaves out what stands further back is right
there. In a trial of states the first values are loud, and gates stay open. Here the model is called on that trial's
inputs and on those whose first values are quiet: with the late results of the second call in place of the first's, it
gives what a candidate gives that knows nothing of the first values. Where the rule by which candidates are judged
refuses that, one is refused that forgets, or restarts at a tile: in this trial, or in its pair, the quiet one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernelwright.ir.graph import Graph
from kernelwright.problem import Problem
from kernelwright.verify.along.placed import first_few
from kernelwright.verify.along.trials import of_states, output_axes
from kernelwright.verify.certificate import Plan
from kernelwright.verify.compare import compare
from kernelwright.verify.computation import settled
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.flatten import flatten, map_tensors, tensors_of
from kernelwright.verify.observe import call, seed_all
from kernelwright.verify.records import Refused, TrialPlan, is_input
from kernelwright.verify.state import apart
from kernelwright.verify.trial import Bench

#: Between the seeds of a trial's inputs and of others.
_OTHER = 7919
#: Shares of the steps after which results are looked at, the last first.
_LATE = (7 / 8, 3 / 4, 1 / 2, 1 / 4)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one trial shows of the first values. ``steps``: how long the axis is. ``reach``: the most steps back at
    which a candidate that forgets is refused; 0 where none is. ``influence``: how far the late results (the whole ones
    of a result without the axis) move where the first values are quiet, relative to their size."""

    plan: TrialPlan
    steps: int
    reach: int
    influence: float

    @property
    def words(self) -> str:
        """What was found, in words."""
        shown = (f"what stood {self.reach} of {self.steps} steps before moves results by {self.influence:.2g} of their "
                 "size" if self.reach else f"what stood far before moves late results by {self.influence:.2g} of their "
                 f"size, which is too little to be seen ({self.steps} steps)")
        return f"On inputs {self.plan.kind}, {shown}"

    @property
    def is_long(self) -> bool:
        """Whether it shows what stood as far back as half of the steps."""
        return self.reach >= self.steps // 2


def find_remembered(problem: Problem, bench: Bench, plan: Plan, trials: Sequence[TrialPlan], graph: Graph
                    ) -> tuple[Remembered, ...]:
    """What trials of states show; those in which the model fails are left out. Two calls of the model each, and one in
    float64. The model's state is restored. Call it under ``torch.random.fork_rng``."""
    found = [r for trial in of_states(trials) for r in _remembered(problem, bench, plan, trial, graph)]
    bench.original.apply(bench.eager)
    return tuple(found)


def _remembered(problem: Problem, bench: Bench, plan: Plan, trial: TrialPlan, graph: Graph) -> list[Remembered]:
    given = inputs_of(trial, problem.make_inputs)
    _set(bench, trial)
    expected = bench.expect(given, trial.seed, keep_as=trial, extreme=DISTRIBUTIONS[trial.distribution].extreme)
    if isinstance(expected, Refused):
        return []
    _set(bench, trial)
    seed_all(trial.seed)
    called = call(bench.eager, without_first(given, trial, problem.make_inputs))
    if called.error is not None:
        return []
    axes = output_axes(graph, bench.eager, given, trial)
    right, exact, other = expected.outputs, expected.reference.outputs, apart(called.outputs, bench.eager)
    leaves = tensors_of(right)
    if len(axes) != len(leaves):
        axes = (None,) * len(leaves)
    steps = max(flatten(given, "input")[path].shape[axis] for path, axis in trial.along if is_input(path))
    few, reach, influence = first_few(steps), 0, 0.0
    for share in _LATE:
        first = max(few, int(share * steps))
        late = _late(right, other, axes, first, steps)
        influence = max(influence, _moved(tensors_of(right), tensors_of(late), axes, first, steps))
        got, wanted, reference = settled(late, right, exact) if expected.reference.lost else (late, right, exact)
        if not compare(got, wanted, reference, tolerance=plan.tolerance_for(trial.distribution)).passed:
            reach = first - few + 1
            break
    return [Remembered(trial, steps, reach, influence)]


def _set(bench: Bench, trial: TrialPlan) -> None:
    bench.original.apply(bench.eager)
    set_parameters(bench.eager, trial)


def without_first(given: Sequence[Any], trial: TrialPlan, make_inputs: Callable[[int], Sequence[Any]]) -> list[Any]:
    """A trial's inputs ``given`` with quiet first values; of what cannot be quiet (tokens), with others."""
    quiet = inputs_of(trial, make_inputs, trial.seed + _OTHER) if trial.distribution == AS_GIVEN else \
        inputs_of(replace(trial, distribution="quiet"), make_inputs)
    leaves, axes = flatten(quiet, "input"), dict(trial.along)
    waiting = iter(flatten(given, "input").items())

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        path = next(path for path, value in waiting if isinstance(value, torch.Tensor))
        made = tensor.detach().clone()
        if path in axes:
            few = first_few(tensor.shape[axes[path]])
            made.narrow(axes[path], 0, few).copy_(leaves[path].narrow(axes[path], 0, few))
        return made

    return map_tensors(list(given), changed)


def _late(right: Any, other: Any, axes: Sequence[int | None], first: int, steps: int) -> Any:
    """The results of ``right`` with those of ``other`` from a step on; whole ones of results without that axis."""
    waiting = iter(zip(tensors_of(other), axes, strict=True))

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        value, axis = next(waiting)
        if axis is None or tensor.shape[axis] != steps:
            return value
        made = tensor.detach().clone()
        made.narrow(axis, first, steps - first).copy_(value.narrow(axis, first, steps - first))
        return made

    return map_tensors(right, changed)


def _moved(right: Sequence[torch.Tensor], late: Sequence[torch.Tensor], axes: Sequence[int | None], first: int,
           steps: int) -> float:
    """The largest relative change of a result's late part."""
    found = 0.0
    for before, after, axis in zip(right, late, axes, strict=True):
        if not before.dtype.is_floating_point or not before.numel():
            continue
        if axis is not None and before.shape[axis] == steps:
            before, after = (t.narrow(axis, first, steps - first) for t in (before, after))
        moved, size = ((t.double().nan_to_num(0.0, 0.0, 0.0)).square().mean().sqrt() for t in (after - before, before))
        found = max(found, float(moved / size) if size else 0.0)
    return found
