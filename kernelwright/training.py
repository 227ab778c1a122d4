"""Backward passes by kernels: planned for the modes of training, and kept where a step is faster by them.

A step is a call that records gradients, and its backward. Eager's and the file's are timed beside each other: without
kernels for its backward, a file's steps are eager's (:mod:`kernelwright.emit.runtime_backward`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from kernelwright.adjoint.backward import make_backward
from kernelwright.adjoint.table import NoAdjoint
from kernelwright.emit.facts import frozen
from kernelwright.failures import is_ours, told
from kernelwright.modes import ModeProgram
from kernelwright.plan.kernels import Recurrence
from kernelwright.problem import Problem
from kernelwright.problem.arguments import split
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages
from kernelwright.records import words_of
from kernelwright.report.units import seconds as in_words
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.baselines import CANDIDATE, EAGER, time_model
from kernelwright.timing.rounds import Times
from kernelwright.timing.speedup import UNKNOWN, speed_up
from kernelwright.verified import candidate_of
from kernelwright.verify.flatten import flatten, tensors_of
from kernelwright.verify.observe import first_line


def with_backward(mode: ModeProgram, example: Sequence[Any], device: Device, stages: Stages) -> ModeProgram:
    """A mode of training with kernels for its gradients; where there are none ``stages`` are told why. Other modes, and
    those without kernels, stay as they are."""
    if not (mode.model.training and True in mode.recordings and mode.plan.kernels):
        return mode
    try:
        if any(isinstance(step.kernel, Recurrence) for step in mode.plan.kernels):
            raise NoAdjoint("the steps of a loop are one kernel, and would be one each in a backward")
        if any("_." in name for name in mode.captured.calls) and (refused := _refused(mode.model, example)):
            raise NoAdjoint(refused)
        return replace(mode, backward=make_backward(mode.captured, device, mode.rewriting.dropped, frozen(mode.model),
                                                    mode.rewriting.graph))
    except NoAdjoint as none:
        reason = str(none)
    except Exception as error:
        if not is_ours(error) or is_out_of_memory(error):
            raise
        reason = told(error)
    stages.say(f"{words_of(mode.name).capitalize()} mode has its gradients from the original computation: {reason}. "
               "Steps run it from the second on.")
    return mode


def _refused(model: nn.Module, example: Sequence[Any]) -> str:
    """Why a backward of the model is refused, as where something is written over that it needs: "" where none is. Found
    on tensors without data."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    tensors = (*model.named_parameters(), *model.named_buffers())
    state: dict[str, torch.Tensor] = {name: fake.from_tensor(t) for name, t in tensors}
    positional, named = split(tree_map(
        lambda value: fake.from_tensor(value) if isinstance(value, torch.Tensor) else value, list(example)))
    try:
        with fake, torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = [t.requires_grad_() for t in tensors_of(positional) if t.is_floating_point()]
            # Inputs are leaves; the model sees views of them, because it may write into them.
            found = torch.func.functional_call(model, state, tuple(
                t.view_as(t) if isinstance(t, torch.Tensor) else t for t in positional), named)
            results = [t for t in tensors_of(found) if t.requires_grad]
            torch.autograd.grad(results, [*given, *(t for t in state.values() if t.requires_grad)],
                                [torch.ones_like(t) for t in results], allow_unused=True)
    except Exception as error:
        return f"it is not known to have a backward ({first_line(error)})"
    return ""


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
                    self.directions = [torch.randn(t.shape, generator=draws[t.device], dtype=t.dtype, device=t.device)
                                       for t in results]
                return torch.autograd.grad(results, self.leaves, self.directions, allow_unused=True)
        finally:
            for tensor in self.forced:
                tensor.requires_grad_(False)


def loses(entries: Mapping[str, Times]) -> bool:
    """Whether a step with kernels for its backward is not faster than eager's, as far as that can be told."""
    found = speed_up(entries, EAGER, CANDIDATE)
    return found.high < 1.0 if found.verdict == UNKNOWN else found.value < 1.0


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
        if loses(timing.entries):
            found[mode.name] = mode.without_backward(took)
        else:
            stages.say(f"{words_of(mode.name).capitalize()} mode: {took}.")
    return [found.get(m.name, m) for m in modes]
