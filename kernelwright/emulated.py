"""Programs for devices that this machine lacks: checked by emulation, compiled where there is a compiler, not timed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from torch import nn

from kernelwright.build.emulation import (
    EmulationError,
    emulated_library,
    emulation_messages,
    fewer_entries,
    load_emulated,
)
from kernelwright.build.module import BuildFailed, compile_cuda, find_cuda_compiler, first_error
from kernelwright.codegen.generate import TARGETS, KernelFailed
from kernelwright.device_lock import clock
from kernelwright.emit.file import kernel_source
from kernelwright.errors import NO_CUDA_COMPILER, KernelwrightError
from kernelwright.failures import is_ours
from kernelwright.modes import ModeProgram, as_called, stepped_back, without
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan
from kernelwright.problem import Problem
from kernelwright.programs import Stages, as_captured, emitted_text, new_model, share_tables, understand, written
from kernelwright.records import words_of
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.training.planned import with_backward
from kernelwright.truths import inputs_of
from kernelwright.verified import REFUSED, SEARCHES, Failure, as_kernels, culprits_of, misfit, step_from, unbuildable
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.certificate import default_trials
from kernelwright.verify.modes import certify_both
from kernelwright.way_back.culprits import Culprits
from kernelwright.way_back.fallback import StepBack, steps_back

_EMULATED_OPERATIONS = 10**8  # of a contraction: some seconds a call
_SECONDS = 60.0  # of checking a mode, and of a search for what is at fault
_TRIALS = Trials(trials=default_trials()[:2], budget_seconds=_SECONDS, repeats=0)


def _with_the_same_contractions(modes: list[ModeProgram], plans: Sequence[Plan]) -> tuple[list[ModeProgram], int]:
    """Smaller modes whose contractions are kernels where those of the plans are, and how many are not, as they would
    take minutes under the emulation."""
    chosen = {(n.op, n.origin): choice for plan in plans for n, choice in plan.contractions.items()}
    result, left = [], 0
    for mode in modes:
        wanted = {n: chosen[n.op, n.origin] for n in mode.plan.graph.nodes()
                  if (n.op, n.origin) in chosen and can_contract(n)}
        small = {n: c for n, c in wanted.items() if n.operator.operations(n) <= _EMULATED_OPERATIONS}
        left = max(left, len(wanted) - len(small))
        result.append(replace(mode, plan=make_plan(mode.plan.graph, mode.captured, move_bias=True, contractions=small,
                                                 fused_products=mode.plan.fused_products)))
    return result, left


def select_without_device(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                          settings: Settings, stages: Stages) -> tuple[list[ModeProgram], str, list[str]]:
    """Kernels of a target with an emulation on a machine without its device: checked by emulation, compiled where nvcc
    is, not timed. The modes as far as they passed, their text, and notes."""
    if not any(m.plan.kernels for m in modes):
        return modes, emitted_text(problem, modes, example, target, device)[0], []
    notes = ["There is no CUDA device here: the file was not run on a GPU and not timed."]
    with stages.stage("verify"):
        modes, checked = _emulated(problem, modes, example, target, device, settings, stages)
    text, parts = emitted_text(problem, modes, example, target, device)
    with stages.stage("build"):
        if not parts[0]:
            pass  # no kernels are left
        elif find_cuda_compiler() is None:
            notes.append(NO_CUDA_COMPILER.what)
        else:
            while parts[0] and (messages := compile_cuda(kernel_source(*parts, target=TARGETS[target]))):
                failed = BuildFailed(f"nvcc refused the generated kernels: {first_error(messages)}\n{messages}")
                modes = without(modes, KernelFailed(unbuildable(parts, compile_cuda), failed), device)
                text, parts = emitted_text(problem, modes, example, target, device)
            notes.append("The kernels compile with nvcc for sm_90a.")
    return modes, text, notes + checked


def _emulated(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
              settings: Settings, stages: Stages) -> tuple[list[ModeProgram], list[str]]:
    """The modes as far as the same program for fewer batch entries passes under the emulation, which is slow, and
    notes. What that program gives up, they give up."""
    most, few = 2, fewer_entries(example, 2)
    try:
        small, _ = understand(problem, few, device, settings, stages)
    except KernelwrightError:  # the first axis of the inputs is no batch that could be cut
        most, few = sys.maxsize, example
        small, _ = understand(problem, few, device, settings, stages)

    def make_inputs(seed: int) -> list[Any]:
        return fewer_entries(problem.make_inputs(seed), most)

    small = [with_backward(m, few, device, stages) if any(m.name == o.name and o.backward for o in modes) else m
             for m in small]
    notes: list[str] = []
    small, left = _with_the_same_contractions(small, [m.plan for m in modes if m.plan.kernels])
    if left:
        notes.append(f"{left} contraction{'s were' if left > 1 else ' was'} not run, being too much for the "
                     "emulation: PyTorch did the work in this check.")
    checked: dict[str, str] = {}
    searches: Counter[str] = Counter()
    while True:
        small, text, parts = written(problem, small, few, target, device)
        if not parts[0]:
            return modes, notes + list(checked.values())
        try:
            emitted = load_emulated(text, kernel_source(*parts, target=TARGETS[target]), problem.name)
        except EmulationError as error:
            if not is_ours(error):
                raise
            failed = KernelFailed(unbuildable(parts, emulation_messages), error)
            small, before = without(small, failed, device), small
            # Of another number of batch entries a backward has other kernels for the same operators as its forward.
            lost = {old.name for old, new in zip(before, small, strict=True) if old.backward and not new.backward}
            modes = [m.without_backward(str(error)) if m.name in lost else m for m in modes] if lost \
                else without(modes, failed, device)
            continue
        share_tables(emitted, problem)
        failures: dict[str, Failure] = {}
        for variant in (v for v in parts[0] if v.mode not in checked):
            def make(kind: ModuleType | None = None, like: nn.Module = variant.model) -> nn.Module:
                made = problem.make_model(settings.seed) if kind is None else new_model(kind, problem, settings.seed)
                return as_captured(problem, like, made, settings.seed)

            if reason := misfit(as_called(variant, make(emitted)), few):
                checked[variant.mode] = f"Not checked in {words_of(variant.mode)} mode: {reason}"
                continue
            mode = next(m for m in small if m.name == variant.mode)
            certificate = certify_both(make, lambda make=make, kind=emitted: as_kernels(make(kind), kind),
                                       inputs_of(problem, mode, settings, make_inputs), plan=_TRIALS,
                                       recorded=1, recordings=variant.recordings)
            if certificate.passed:
                entries = " with 2 batch entries" if most == 2 else ""
                checked[variant.mode] = (f"Checked by emulation on the CPU{entries}, {words_of(variant.mode)} mode: "
                                         f"{certificate.sentence()}")
            else:
                failures[variant.mode] = Failure.of(certificate)
        if not failures:
            return modes, notes + list(checked.values())
        for place, mode in enumerate(small):
            if (failure := failures.get(mode.name)) is None:
                continue
            if mode.backward and failure.recorded:
                small[place] = mode.without_backward(failure.finding)
                modes = [m.without_backward(failure.finding) if m.name == mode.name else m for m in modes]
                continue
            culprits = Culprits()
            if searches[mode.name] < SEARCHES:
                searches[mode.name] += 1
                culprits = culprits_of(problem, mode, failure, target, device, settings, _TRIALS.tolerance,
                                       clock() + _SECONDS, emulated_library,
                                       inputs_of(problem, mode, settings, make_inputs))
            step, found = step_from(mode, failure, device, culprits)
            small[place] = stepped_back(mode, step, device, found)
            modes = [_down_to(m, step, found, device, culprits) if m.name == mode.name else m for m in modes]


def _down_to(mode: ModeProgram, reached: StepBack, found: str, device: Device, culprits: Culprits) -> ModeProgram:
    """The mode with everything given up that a smaller one has: its own steps down to that level, or the first one
    where it knows none of what is at fault."""
    reason, known = f"{REFUSED}: {found}", culprits.like(mode.plan)
    level = reached.level if known or not culprits else None
    for step in steps_back(mode.captured, device, reason, mode.rewriting, mode.plan, known):
        if level is not None and step.level > level:
            break
        mode = stepped_back(mode, step, device, found)
        if level is None:
            break
    return mode
