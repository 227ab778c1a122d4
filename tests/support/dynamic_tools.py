"""Files for several sizes, without clocks and certificates, for tests of what they serve."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.build.emulation import load_emulated
from kernelwright.build.module import load_text
from kernelwright.codegen.generate import TARGETS
from kernelwright.dynamic.make import Made, made_of_sizes
from kernelwright.dynamic.sizes import Size, sizes_of
from kernelwright.modes import ModeProgram
from kernelwright.problem import Problem, load_problem
from kernelwright.programs import Stages, emitted_text, new_model, understand, written
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU, GENERIC_CUDA, Device
from kernelwright.selection import with_strides_of_eager
from kernelwright.settings import Settings


@dataclass
class Several:
    """What is made of a model for several sizes."""

    problem: Problem
    modes: list[ModeProgram]
    sizes: tuple[Size, ...]
    made: Made
    text: str
    static: str
    settings: Settings
    device: Device
    @cached_property
    def module(self) -> ModuleType:
        """The emitted module, its kernels built."""
        if self.settings.target == "cuda":
            return load_emulated(self.text, self.made.sized.kernels.text, "several")
        return load_text(self.text, "several")

    def model(self) -> nn.Module:
        """A ModelNew with the model's parameters."""
        return new_model(self.module, self.problem, 0)


def several(model: nn.Module, inputs: Sequence[Any], *dynamic: str, target: str = "cpp") -> Several:
    """The file of a model for several sizes."""
    device = GENERIC_CPU if TARGETS[target].on_host else GENERIC_CUDA
    settings, stages = Settings(dynamic=dynamic, target=target), Stages(Progress())
    problem = load_problem(model, list(inputs))
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, device, settings, stages)
    modes = [part for mode in modes for part in with_strides_of_eager(problem, mode, example, device, settings)]
    modes, static, _ = written(problem, modes, example, target, device)
    sizes = sizes_of(settings.dynamic, model, example)
    made = made_of_sizes(problem, modes, sizes, target, device, settings, stages)
    text, _ = emitted_text(problem, modes, example, target, device, sized=made.sized)
    return Several(problem, modes, sizes, made, text, static, settings, device)


def of_shape(inputs: Sequence[Any], *changes: tuple[int, int, int], seed: int = 0) -> list[Any]:
    """Inputs with other sizes: of (number, axis, size)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [list(value.shape) if isinstance(value, torch.Tensor) else None for value in inputs]
    for number, axis, size in changes:
        shape = shapes[number]
        assert shape is not None
        shape[axis] = size
    return [value if shape is None else torch.randint(0, int(value.max()) + 1, shape, generator=generator)
            if not value.is_floating_point() else torch.randn(shape, generator=generator, dtype=value.dtype)
            for value, shape in zip(inputs, shapes, strict=True)]


def same_state(one: nn.Module, other: nn.Module) -> nn.Module:
    """``other`` with a copy of the state of ``one``, in its mode."""
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    return other.train(one.training)
