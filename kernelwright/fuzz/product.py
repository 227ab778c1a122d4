"""A model taken through the product as ``optimize`` does, but for what a clock decides; and its file beside eager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelwright.algebra.rule import Exactness
from kernelwright.build.emulation import load_emulated
from kernelwright.build.module import kernels_of, load_text
from kernelwright.codegen.generate import TARGETS
from kernelwright.fuzz.alike import CHANGES, SETTINGS, Difference, Setting, differences, observe
from kernelwright.modes import described_mode, distinct
from kernelwright.pipeline import explain
from kernelwright.problem import Problem, load_problem
from kernelwright.problem.inputs import changed
from kernelwright.problem.seeds import seed_generators
from kernelwright.programs import Stages, new_model, understand
from kernelwright.progress import Progress
from kernelwright.records import Mode
from kernelwright.roofline.devices import GENERIC_CPU, H200, Device
from kernelwright.selection import select
from kernelwright.settings import HOST_TARGET, settings_of
from kernelwright.tune.budget import unmeasured
from kernelwright.verify.flatten import map_tensors

#: Of a model: enough on a busy machine, too.
_SECONDS = 600.0


@dataclass(frozen=True)
class Made:
    """The emitted file of a problem: its text, the module that it is, and what the product says of each mode.

    given_up: notes of what failed its check and was given up for it.
    """

    problem: Problem
    text: str
    emitted: ModuleType
    modes: tuple[Mode, ...]
    notes: tuple[str, ...]
    given_up: tuple[str, ...] = ()

    @property
    def exchanges_products(self) -> bool:
        """Whether a rule was used that holds for finite numbers alone: signs of zeros and places of NaN may move."""
        return any(use.exactness == str(Exactness.FINITE) for mode in self.modes for use in mode.rules)

    def differences(self, seed: int = 0, settings: Sequence[Setting] = SETTINGS,
                    change: Callable[[torch.Tensor], torch.Tensor] | None = None, inputs: str = "",
                    extreme: bool = False) -> list[Difference]:
        """What ModelNew does otherwise than the model in eager, with the inputs of a seed.

        change: what becomes of their floating tensors of 32 bits and more. inputs: others, as Python text that is
        read in the problem's file. extreme: as :func:`kernelwright.fuzz.alike.differences` says.
        """

        def given() -> list[Any]:
            if inputs:
                seed_generators(seed)
                return list(eval(f"[{inputs}]", vars(sys.modules[self.problem.model_class.__module__])))
            values = self.problem.make_inputs(seed)
            return values if change is None else map_tensors(
                values, lambda t: changed(t, change) if t.is_floating_point() and t.element_size() >= 4 else t)

        return differences(lambda: self.problem.make_model(seed), lambda: new_model(self.emitted, self.problem, seed),
                           given, seed=seed, settings=settings, exact=not self.exchanges_products,
                           extreme=extreme or change is not None)

    def runs_kernels(self, seed: int = 0) -> bool:
        """Whether kernels run in a call with the inputs of a seed, in evaluation mode under ``no_grad``."""
        run = getattr(self.emitted, "_kernelwright_run", None)
        if run is None:
            return False
        calls: list[int] = []
        vars(self.emitted)["_kernelwright_run"] = lambda *given: (calls.append(1), run(*given))[1]
        model = new_model(self.emitted, self.problem, seed).eval()
        try:
            observe(model, self.problem.make_inputs(seed), SETTINGS[0], seed)
        finally:
            vars(self.emitted)["_kernelwright_run"] = run
        return bool(calls)

    def all_differences(self, seed: int = 0) -> list[Difference]:
        """:meth:`differences` in all settings, and under each of `CHANGES` without gradients."""
        found = self.differences(seed)
        for words, change in CHANGES.items():
            found += [d._replace(where=f"{words}, {d.where}") for d in self.differences(seed, SETTINGS[:1], change)]
        return found


def row_of(target: str) -> Device:
    """The device that random models are planned for, whatever the machine has."""
    return GENERIC_CPU if TARGETS[target].on_host else H200


def make(path: Path, target: str = HOST_TARGET) -> Made:
    """Emit, build and (where the host runs the kernels) judge the file of a problem, without timing. Raises as
    ``optimize`` does."""
    row = row_of(target)
    if TARGETS[target].emulated:
        result = explain(path, settings=settings_of(target=target), device=row)
        problem = load_problem(path, device="cpu")
        kernels = kernels_of(result.source)
        emitted = load_emulated(result.source, kernels, problem.name) if kernels else \
            load_text(result.source, problem.name)
        return Made(problem, result.source, emitted, result.modes, tuple(result.notes))
    # What is kept of a model that fails is no matter of how busy the machine is.
    settings, stages = settings_of(target=target), Stages(Progress(), unmeasured(_SECONDS))
    problem = load_problem(path, device="cpu")
    example = problem.make_inputs(settings.seed)
    modes, notes = understand(problem, example, row, settings, stages)
    module, modes, text, _, _ = select(problem, modes, example, target, row, settings, stages)
    return Made(problem, text, sys.modules[type(module).__module__],
                tuple(described_mode(m, row) for m in distinct(modes)), tuple(notes),
                tuple(dict.fromkeys(note for m in modes for note in m.notes)))
