"""Tune, build, verify and time: what the measurements leave of a planned program, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.build.module import BuildFailed
from kernelwright.codegen.generate import has_skeleton
from kernelwright.codegen.plan_evaluator import filled, values_of
from kernelwright.failures import is_ours, told
from kernelwright.fallback import Level, StepBack
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.node import Node
from kernelwright.modes import ModeProgram, as_called, described_mode, distinct, keeping, laid_out, original
from kernelwright.plan.contraction import Contraction
from kernelwright.plan.planner import ALONE, make_plan
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages, new_model
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.baselines import COMPILERS, is_slower, time_model
from kernelwright.tune import contractions, layouts
from kernelwright.tune.budget import Budget
from kernelwright.tune.regions import SLOWER, losing_regions
from kernelwright.verified import built, candidate_of, certified_modes, given_by_model
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.flatten import flatten


def judge(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
          budget: Budget, settings: Settings, stages: Stages
          ) -> tuple[nn.Module, list[ModeProgram], str, dict[str, Certificate], dict[str, Any]]:
    """Choose contractions, drop the regions that lose, choose layouts, verify and time; a mode that is not faster
    keeps the original. Raises VerificationFailed where even a file without any kernel fails."""
    modes = [part for mode in modes for part in with_strides_of_eager(problem, mode, example, device, settings)]

    def without_losers(modes: list[ModeProgram]) -> list[ModeProgram]:
        return _without_losers(problem, modes, example, target, device, budget, stages)

    def with_layouts(modes: list[ModeProgram]) -> list[ModeProgram]:
        return _with_layouts(problem, modes, example, target, device, budget, settings, stages)

    def tuned(mode: ModeProgram, step: StepBack) -> ModeProgram:
        # Without its contractions the library's convolutions may run channels-last.
        changes = [without_losers, *([with_layouts] if step.level is Level.CONTRACTIONS else [])]
        return _changed([mode], *changes)[0]

    modes = _changed(modes, lambda modes: _with_contractions(problem, modes, example, target, device, budget, settings,
                                                             stages), without_losers, with_layouts)
    modes, text, emitted, certificates = certified_modes(problem, modes, example, target, device, budget, settings,
                                                         stages, tuned)
    slower, timings = _timed(problem, modes, emitted, example, device, budget, settings, stages)
    if slower:
        modes = [original(m, slower.get(m.program, ""), device) for m in modes]
        with stages.stage("build"):
            modes, text, emitted = built(problem, modes, example, target, device)
    return new_model(emitted, problem, settings.seed), modes, text, certificates, timings


def _changed(modes: list[ModeProgram], *changes: Callable[[list[ModeProgram]], list[ModeProgram]]) -> list[ModeProgram]:
    """The modes as tuning changes them; where it fails they stay as they were, with a note."""
    for change in changes:
        try:
            modes = change(modes)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            note = f"Something of it was not tuned: {told(error)}."
            modes = [replace(m, notes=(*m.notes, note)) for m in modes]
    return modes


def with_strides_of_eager(problem: Problem, mode: ModeProgram, example: list[Any], device: Device, settings: Settings
                          ) -> list[ModeProgram]:
    """The mode with its results' strides as eager has them on this device. A trace does not know them: libraries
    choose the order in which they store, and some operators keep other orders of axes than their descriptions say."""
    if not mode.plan.kernels:
        return [mode]
    numbers = flatten(filled(mode.captured.structure, range(len(mode.captured.outputs))))
    strides: dict[bool, list[tuple[int, ...] | None]] = {}
    for recording in mode.recordings:
        try:
            found = flatten(given_by_model(problem, mode, example, settings, recording))
        except Exception as error:
            if is_out_of_memory(error):  # for what a backward needs: the certificate compares
                return [mode]
            raise
        strides[recording] = [None] * len(mode.captured.outputs)
        for path, number in numbers.items():
            if isinstance(number, int) and isinstance(found.get(path), torch.Tensor):
                strides[recording][number] = tuple(found[path].stride())
    return laid_out(mode, strides, device)


def _without_losers(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                    budget: Budget, stages: Stages) -> list[ModeProgram]:
    """The modes with those regions left to PyTorch whose kernels do not win."""
    if not budget.measures:
        return modes
    while True:
        try:
            with stages.stage("tune"):
                return [keeping(m, losing_regions(m.plan, problem.device, target, budget), device) for m in modes]
        except BuildFailed as failed:
            with stages.stage("build"):
                left, _, _ = built(problem, modes, example, target, device)
            if left == modes:
                raise failed from None
            modes = left


def _timed(problem: Problem, modes: list[ModeProgram], emitted: ModuleType, example: list[Any], device: Device,
           budget: Budget, settings: Settings, stages: Stages) -> tuple[dict[Hashable, str], dict[str, Any]]:
    """Time the modes: the (rendered) programs that are not faster, or fail under the clock, with the reason, and the
    timings by mode."""
    timings: dict[str, Any] = {}
    slower: dict[Hashable, str] = {}
    for place, mode in enumerate(distinct(modes) if budget.measures else ()):
        # Compiling a large network twice takes minutes: a quick run compares the mode as constructed.
        compilers = COMPILERS["none" if place and settings.effort == "quick" else settings.baselines]
        try:
            with stages.stage("time"):
                candidate = as_called(mode, candidate_of(emitted, problem, mode, settings)) if mode.plan.kernels \
                    else None
                timing = timings[mode.name] = time_model(
                    as_called(mode, mode.model), candidate, example, device=problem.device,
                    floor_seconds=described_mode(mode, device).floor_seconds or None,
                    budget_seconds=budget.time_seconds / (2 if place and settings.effort == "quick" else 1),
                    compilers=compilers, compile_limit_seconds=budget.compile_seconds)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error) or not mode.plan.kernels:
                raise
            slower[mode.program] = told(error)
            continue
        if mode.plan.kernels and is_slower(timing):
            slower[mode.program] = SLOWER
    return slower, timings


def _with_contractions(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                       budget: Budget, settings: Settings, stages: Stages) -> list[ModeProgram]:
    """The modes with the contractions as kernels that win, where the target has such kernels."""
    if not has_skeleton(Contraction, target) or settings.contractions == "library" or (
            settings.contractions == "auto" and problem.device.type != "cuda"):
        return modes
    plans = {}
    with stages.stage("tune"):
        for mode in distinct(modes):
            # An operator that would have been a kernel all alone may fuse with a contraction.
            kept = {n: reason for n, reason in mode.plan.kept.items() if reason != ALONE}
            chosen, left = contractions.choose(
                mode.plan.graph, mode.captured, kept, _leaf_values(mode, example), problem.device, device, budget,
                strict=settings.precision == "strict", say=stages.progress.say)
            plans[mode.program] = make_plan(mode.plan.graph, mode.captured, kept | left, move_bias=True,
                                                     contractions=chosen) if chosen or left else mode.plan
    return [replace(m, plan=replace(plans[m.program], graph=m.rewriting.graph)) for m in modes]


def _leaf_values(mode: ModeProgram, example: list[Any]) -> dict[Node, torch.Tensor]:
    """The model's tensors and its example inputs, as kernels read them."""
    if not mode.captured.outputs:  # nothing was captured
        return {}
    values = values_of(mode.model, mode.captured, example)
    return {n: as_stored(n, values[n["name"]]).detach() for n in mode.rewriting.graph.nodes()
            if n.kind == "leaf" and n.get("name") in values}


def _with_layouts(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                  budget: Budget, settings: Settings, stages: Stages) -> list[ModeProgram]:
    """The modes with convolutions channels-last, where whole programs are faster so."""
    others: dict[Hashable, ModeProgram] = {}
    if not budget.measures:
        return modes
    seconds_each = budget.tune_seconds / 2
    with stages.stage("tune"):
        for mode in distinct(modes):
            seconds = layouts.convolution_seconds(mode.plan, problem.device, seconds_each)
            plan = layouts.channels_last_plan(mode.plan, mode.captured, seconds, device)
            if plan is not None:
                others[mode.program] = replace(mode, plan=plan)
    if not others:
        return modes
    before = [m for m in distinct(modes) if m.program in others]
    with stages.stage("build"):
        files = [built(problem, some, example, target, device)[2] for some in (before, list(others.values()))]
    with stages.stage("tune"):
        for mode in before:
            programs = {name: as_called(mode, candidate_of(module, problem, mode, settings))
                        for name, module in zip((layouts.FIRST, layouts.LAST), files, strict=True)}
            times = layouts.measured_programs(programs, example, problem.device, seconds_each)
            ratio = layouts.faster(times)
            plan = others.pop(mode.program).plan
            if ratio is not None:
                others[mode.program] = replace(mode, plan=replace(plan, layout=layouts.words(plan, ratio)))
    return [replace(m, plan=replace(others[program].plan, graph=m.rewriting.graph))
            if (program := m.program) in others else m for m in modes]
