"""Whether a candidate forgets: results that no longer depend on the first values where the model's still do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kernelwright.judge.check.remembered import without_first
from kernelwright.judge.records import Finding
from kernelwright.verify.along.placed import first_few
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.flatten import clone_tensors, flatten, tensors_of
from kernelwright.verify.observe import call, seed_all
from kernelwright.verify.records import TrialPlan, is_input
from kernelwright.verify.state import State

#: The candidate's result counts as unmoved below this share of the model's own change, and a change of the model's as
#: none below this share of its largest.
_UNMOVED, _NONE = 0.01, 1e-3
_FIX = ("hand the state on from tile to tile, and start no tile but the first one anew; leave out nothing that stands "
        "further back: under other inputs and parameters it counts")


def find_forgotten(make_model: Callable[[], nn.Module], candidate: nn.Module,
                   make_inputs: Callable[[int], Sequence[Any]], failed: Sequence[TrialPlan]) -> Finding | None:
    """What trials of states show of a candidate that was wrong in them; None where it forgets nothing.

    Both are called twice, with the first values loud and quiet. Raises what ``make_model`` and ``make_inputs`` raise.
    """
    plan = next((p for p in failed if p.distribution in ("loud start", "quiet", "near one", AS_GIVEN)
                 and any(is_input(path) for path, _ in p.along)), None)
    if plan is None:
        return None
    loud = replace(plan, distribution="loud start") if plan.distribution == "quiet" else plan
    model = make_model()
    set_parameters(model, loud)
    before, given = State.of(model), inputs_of(loud, make_inputs)
    calls = []
    for inputs in (given, without_first(given, loud, make_inputs)):
        for module in (model, candidate):
            before.apply(module)
            seed_all(loud.seed)
            called = call(module, clone_tensors(inputs))
            if called.error is not None:
                return None
            calls.append(tensors_of(clone_tensors(called.outputs)))
    steps = max(flatten(given, "input")[path].shape[axis] for path, axis in loud.along if is_input(path))
    if len({len(c) for c in calls}) > 1:
        return None
    for first, first_own, second, second_own in zip(*calls, strict=True):
        if first.shape == first_own.shape and first.dtype.is_floating_point and first.numel() \
                and bool(torch.isfinite(torch.stack([first_own, second_own])).all()):
            moved, own = _change(first, second), _change(first_own, second_own)
            if (found := _described(moved, own, steps)) is not None:
                return found
    return None


def _change(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.double() - right.double()).abs().nan_to_num(0.0, 0.0, 0.0)


def _described(moved: torch.Tensor, own: torch.Tensor, steps: int) -> Finding | None:
    """The finding of changes of the model's result and the candidate's."""
    few, axes = first_few(steps), [a for a, size in enumerate(moved.shape) if size == steps]
    evidence = {"weight": 2.8, "first_values": few, "steps": steps}
    if not axes:
        if float(moved.max()) > 0 and float(own.max()) < _UNMOVED * float(moved.max()):
            return Finding("forgets", f"It forgets: what the first {few} of {steps} values are does not show in the "
                           "output, where it does in the model's", fix=_FIX, evidence=evidence)
        return None
    for axis in axes:
        others = [a for a in range(moved.dim()) if a != axis]
        by_model, by_own = (t.amax(others) if others else t for t in (moved, own))
        shows = by_model > _NONE * by_model.max()
        lost = shows & (by_own < _UNMOVED * by_model)
        if not bool(lost.any()):
            continue
        kept = (shows & ~lost).nonzero().flatten()
        start = int(kept[-1]) + 1 if kept.numel() else 0
        after = lost.nonzero().flatten()
        after = after[after >= start]
        if after.numel() and start > 0:
            place = int(after[0])
            return Finding("forgets", f"It forgets: what the first {few} of {steps} values are shows in the output up "
                           f"to position {start - 1} of axis {axis} and not from {place} on, where it does in the "
                           "model's", fix=_FIX, evidence={**evidence, "axis": axis, "first": place})
    return None
