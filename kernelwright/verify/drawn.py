"""The inputs and parameters of a trial, as its plan says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.problem.inputs import changed
from kernelwright.verify.along.gates import open_gates
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.flatten import map_paths
from kernelwright.verify.observe import call, identical, seed_all
from kernelwright.verify.records import TrialPlan, is_input
from kernelwright.verify.state import State, redraw

#: Beside the seed of a trial: that of the inputs of a call before it.
_EARLIER = 10_007


def inputs_of(plan: TrialPlan, make_inputs: Callable[[int], Sequence[Any]], seed: int | None = None) -> list[Any]:
    """A trial's inputs; ``seed``: those of another draw instead."""
    seed = plan.seed if seed is None else seed
    found = DISTRIBUTIONS[plan.distribution].apply(list(make_inputs(seed)), seed, dict(plan.along), plan.triangular)
    changes = {change.name: change for change in plan.opened if is_input(change.name)}
    if not changes:
        return found

    def opened(path: str, tensor: torch.Tensor) -> torch.Tensor:
        change = changes.get(path)
        return tensor if change is None else changed(tensor, lambda part: part * change.scale + change.shift)

    return map_paths(found, opened, "input")


@torch.no_grad()
def set_parameters(module: nn.Module, plan: TrialPlan) -> None:
    """Change parameters and running statistics in place, from those of construction to those of a trial."""
    if plan.redrawn_parameters:
        redraw(module, plan.seed)
    placing = DISTRIBUTIONS[plan.distribution].place
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, axis in plan.along:
        parameter = parameters.get(name) if not is_input(name) else None
        if placing is not None and parameter is not None:
            generator = torch.Generator(parameter.device).manual_seed(plan.seed)
            parameter.copy_(placing(parameter.detach().clone(), axis, generator))
    open_gates(module, plan.opened)


def set_state(module: nn.Module, original: State, plan: TrialPlan, make_inputs: Callable[[int], Sequence[Any]],
              carries: bool = True) -> None:
    """Put a model into the state in which a trial calls it: with the trial's parameters and, where calls change what
    its plain attributes hold (``carries``: they may), as a call on other inputs leaves these, but for trials as given.
    """
    original.apply(module)
    set_parameters(module, plan)
    if not carries or (plan.distribution == AS_GIVEN and not plan.changes_parameters):
        return
    seed_all(plan.seed)
    failed = call(module, list(make_inputs(plan.seed + _EARLIER))).error is not None
    if failed or identical(State.of(module, parameters=False, owned=False).attributes, original.attributes):
        original.apply(module)
        set_parameters(module, plan)
