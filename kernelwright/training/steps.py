"""Steps of training are timed, and kernels for their backward kept where a step is faster by them.

A step is a call that records gradients, and its backward. Eager's and the file's are timed beside each other: without
kernels for its backward, a file's steps are eager's (:mod:`kernelwright.emit.runtime_backward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.failures import is_ours, told
from kernelwright.modes import ModeProgram
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages
from kernelwright.records import words_of
from kernelwright.report.units import seconds as in_words
from kernelwright.settings import Settings
from kernelwright.timing.baselines import CANDIDATE, EAGER, is_slower, time_model, wall_seconds
from kernelwright.verified import candidate_of
from kernelwright.verify.flatten import flatten, tensors_of


class TrainingStep(nn.Module):
    """A module whose calls record gradients and find those of all its parameters, and of the inputs that require them;
    of all inputs where nothing does. Directions are random, the same in all steps: some gradients of a sum are zero."""

    def __init__(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.module = module
        given = [t for t in tensors_of(list(inputs)) if t.is_floating_point()]
        self.leaves: list[torch.Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.forced = [] if self.leaves or any(t.requires_grad for t in given) else given
        self.leaves += self.forced or [t for t in given if t.requires_grad]
        self.directions: list[torch.Tensor] = []

    def forward(self, *inputs: Any) -> Any:
        for tensor in self.forced:
            tensor.requires_grad_(True)
        try:
            with torch.enable_grad():
                found = flatten(self.module(*inputs)).values()
                results = [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]
                if not self.directions:  # drawn where they are: the processor takes a minute for a billion of them
                    draws = {t.device: torch.Generator(t.device).manual_seed(0) for t in results}
                    self.directions = [  # the same numbers in all types, so that a model in float64 has them, too
                        torch.randn(t.shape, generator=draws[t.device], device=t.device,
                                    dtype=torch.complex64 if t.is_complex() else torch.float32).to(t.dtype)
                        for t in results]
                return torch.autograd.grad(results, self.leaves, self.directions, allow_unused=True)
        finally:
            for tensor in self.forced:
                tensor.requires_grad_(False)


def faster_steps(problem: Problem, modes: Sequence[ModeProgram], emitted: ModuleType, example: Sequence[Any],
                 settings: Settings, stages: Stages, seconds: float) -> list[ModeProgram]:
    """The modes, without kernels for their backward where these do not pay.

    emitted: the modes' module, which was certified. seconds: to measure for."""
    programs = [m for m in modes if m.backward]
    found: dict[str, ModeProgram] = {}
    for mode in programs:
        inputs = list(example)
        with stages.stage("time", f"a step of {words_of(mode.name)}"):
            own = candidate_of(emitted, problem, mode, settings)
            try:
                timing = time_model(
                    TrainingStep(mode.model, inputs), TrainingStep(own, inputs), inputs, device=problem.device,
                    budget_seconds=seconds / len(programs), compilers={})
            except Exception as error:
                if not is_ours(error) and not is_out_of_memory(error):
                    raise
                found[mode.name] = mode.without_backward(told(error))
                continue
        eager, with_kernels = (in_words(timing.entries[name].median) for name in (EAGER, CANDIDATE))
        took = f"a step takes {with_kernels} with kernels for its backward, and eager's {eager}"
        walls = wall_seconds(timing.entries[EAGER], timing.entries[CANDIDATE])
        if timing.entries[CANDIDATE].median < timing.entries[EAGER].median and walls is not None:
            took += f" (with what the host does, {in_words(walls[1])} and {in_words(walls[0])}: {walls[2]})"
        if is_slower(timing):
            found[mode.name] = mode.without_backward(took)
        else:
            stages.say(f"{words_of(mode.name).capitalize()} mode: {took}.")
    return [found.get(m.name, m) for m in modes]
