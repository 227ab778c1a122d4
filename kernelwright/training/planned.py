"""Kernels for the gradients of the modes of training, as far as their operators have adjoints."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
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
from kernelwright.problem.arguments import split
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages
from kernelwright.records import words_of
from kernelwright.roofline.devices import Device
from kernelwright.verify.flatten import tensors_of
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
