"""Build, tune, verify and time: what the measurements leave of a planned program, and what they say of it."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from textwrap import shorten
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.algebra.rule import Exactness
from kernelwright.build.emulation import fewer_entries, load_emulated
from kernelwright.build.module import BuildFailed, compile_cuda, find_cuda_compiler, load_text
from kernelwright.capture.batch import batch_independent
from kernelwright.codegen.generate import has_skeleton
from kernelwright.codegen.plan_evaluator import values_of
from kernelwright.emit.file import kernel_source
from kernelwright.errors import NO_CUDA_COMPILER, KernelwrightError, VerificationFailed
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import render
from kernelwright.ir.node import Node
from kernelwright.plan.contraction import Contraction
from kernelwright.plan.kernels import Scan
from kernelwright.plan.planner import ALONE, make_plan
from kernelwright.plan.products import can_contract
from kernelwright.plan.records import Plan
from kernelwright.problem import Problem
from kernelwright.programs import (
    ModeProgram,
    Stages,
    described_mode,
    distinct,
    emitted_text,
    exactly,
    keeping,
    new_model,
    original,
    understand,
)
from kernelwright.roofline.cost import graph_work
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.baselines import COMPILERS, is_slower, time_model
from kernelwright.timing.turns import without_device
from kernelwright.tune import contractions, layouts
from kernelwright.tune.budget import Budget
from kernelwright.tune.regions import SLOWER, losing_regions
from kernelwright.verify.certificate import Certificate, certify, default_trials
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.state import float64_copy, to_float64
from kernelwright.verify.tolerance import Tolerance

REFUSED = "the model with its kernel was not accurate enough"
_MANY_OPERATIONS = 10**10  # a second or so in float64 on a few cores
_EMULATED_OPERATIONS = 10**8  # of a contraction: some seconds a call
_VERIFY_COPIES = 11  # of inputs and outputs that a trial holds at once, float64 counted twice (measured: nearly 10)


def judge(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
          budget: Budget, settings: Settings, stages: Stages
          ) -> tuple[nn.Module, list[ModeProgram], str, dict[str, Certificate], dict[str, Any]]:
    """Choose contractions, drop the regions that lose, choose layouts, verify and time; a mode that is not faster
    keeps the original."""
    with_kernels = _with_contractions(problem, modes, example, target, device, budget, settings, stages)
    try:
        return _judged(problem, with_kernels, example, target, device, budget, settings, stages)
    except VerificationFailed as failure:
        if not any(m.plan.contractions for m in with_kernels):
            raise
        reason = f"{REFUSED}: {shorten(failure.why.removeprefix('Failed: '), 300)}"
    # Each contraction was accurate by itself: what follows asks for more than the model's own rounding leaves.
    exact = [exactly(m, device) for m in with_kernels]
    if any(m.plan.contractions != e.plan.contractions for m, e in zip(with_kernels, exact, strict=True)):
        with suppress(VerificationFailed):
            return _judged(problem, exact, example, target, device, budget, settings, stages)
    modes = [keeping(m, dict.fromkeys(c.plan.contractions, reason), device)
             for m, c in zip(modes, with_kernels, strict=True)]
    return _judged(problem, modes, example, target, device, budget, settings, stages)


def _judged(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
            budget: Budget, settings: Settings, stages: Stages
            ) -> tuple[nn.Module, list[ModeProgram], str, dict[str, Certificate], dict[str, Any]]:
    """Drop the regions that lose, choose layouts, verify and time. Raises VerificationFailed."""
    with stages.stage("tune"):
        lost = [losing_regions(m.plan, problem.device, target, budget) for m in modes]
        modes = [keeping(m, losers, device) for m, losers in zip(modes, lost, strict=True)]
    plain, modes = modes, _with_layouts(problem, modes, example, target, device, budget, settings, stages)
    try:
        return _certified_and_timed(problem, modes, example, target, device, budget, settings, stages)
    except VerificationFailed:
        if not any(m.plan.channels_last for m in modes):
            raise
    # Sums that walk another order may lose digits that the model keeps: then its own order stays.
    return _certified_and_timed(problem, plain, example, target, device, budget, settings, stages)


def _certified_and_timed(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                         budget: Budget, settings: Settings, stages: Stages
                         ) -> tuple[nn.Module, list[ModeProgram], str, dict[str, Certificate], dict[str, Any]]:
    """Build, verify and time; a mode that is not faster keeps the original. Raises VerificationFailed."""
    certificates: dict[str, Certificate] = {}
    timings: dict[str, Any] = {}
    with stages.stage("build"):
        text, emitted = _built(problem, modes, example, target, device)
        misfits = {render(m.captured): reason for m in distinct(modes) if m.plan.kernels and (
            reason := _misfit(new_model(emitted, problem, settings.seed).train(m.model.training), example))}
        if misfits:
            modes = [original(m, misfits.get(render(m.captured), "")) for m in modes]
            text, emitted = _built(problem, modes, example, target, device)
    for mode in distinct(modes):
        certificates[mode.name] = _certified(problem, mode, emitted, budget, settings, stages)
    slower = set()
    for place, mode in enumerate(distinct(modes)):
        # Compiling a large network twice takes minutes: a quick run compares the mode as constructed.
        compilers = COMPILERS["none" if place and settings.effort == "quick" else settings.baselines]
        with stages.stage("time"):
            candidate = new_model(emitted, problem, settings.seed).train(mode.model.training)
            timing = timings[mode.name] = time_model(
                mode.model, candidate if mode.plan.kernels else None, example, device=problem.device,
                floor_seconds=described_mode(mode, device).floor_seconds or None,
                budget_seconds=budget.time_seconds / (2 if place and settings.effort == "quick" else 1),
                compilers=compilers, compile_limit_seconds=budget.compile_seconds)
        if mode.plan.kernels and is_slower(timing):
            slower.add(render(mode.captured))
    if slower:
        modes = [original(m, SLOWER if render(m.captured) in slower else "") for m in modes]
        with stages.stage("build"):
            text, emitted = _built(problem, modes, example, target, device)
    return new_model(emitted, problem, settings.seed), modes, text, certificates, timings


def _built(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device
           ) -> tuple[str, ModuleType]:
    """The emitted text of the modes, and the module that it is."""
    text, _ = emitted_text(problem, modes, example, target, device)
    with without_device():
        return text, load_text(text, problem.name)


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
            plans[render(mode.captured)] = make_plan(mode.plan.graph, mode.captured, kept | left, move_bias=True,
                                                     contractions=chosen) if chosen or left else mode.plan
    return [replace(m, plan=replace(plans[render(m.captured)], graph=m.rewriting.graph)) for m in modes]


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
    others: dict[str, ModeProgram] = {}
    seconds_each = budget.tune_seconds / 2
    with stages.stage("tune"):
        for mode in distinct(modes):
            seconds = layouts.convolution_seconds(mode.plan, problem.device, seconds_each)
            plan = layouts.channels_last_plan(mode.plan, mode.captured, seconds, device)
            if plan is not None:
                others[render(mode.captured)] = replace(mode, plan=plan)
    if not others:
        return modes
    before = [m for m in distinct(modes) if render(m.captured) in others]
    with stages.stage("build"):
        built = [_built(problem, some, example, target, device)[1] for some in (before, list(others.values()))]
    with stages.stage("tune"):
        for mode in before:
            programs = {name: new_model(module, problem, settings.seed).train(mode.model.training)
                        for name, module in zip((layouts.FIRST, layouts.LAST), built, strict=True)}
            times = layouts.measured_programs(programs, example, problem.device, seconds_each)
            ratio = layouts.faster(times)
            plan = others.pop(render(mode.captured)).plan
            if ratio is not None:
                others[render(mode.captured)] = replace(mode, plan=replace(plan, layout=layouts.words(plan, ratio)))
    return [replace(m, plan=replace(others[text].plan, graph=m.rewriting.graph))
            if (text := render(m.captured)) in others else m for m in modes]


def _misfit(model: nn.Module, example: list[Any]) -> str:
    """Why the kernels of a ModelNew do not fit its own example inputs (not contiguous, say), or ""."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        model(*copy.deepcopy(example))
    messages = [str(w.message) for w in caught if str(w.message).startswith("ModelNew runs the original")]
    return f"the example inputs do not fit its kernels: {messages[0].partition(': ')[2]}" if messages else ""


def _certified(problem: Problem, mode: ModeProgram, emitted: Any, budget: Budget, settings: Settings, stages: Stages
               ) -> Certificate:
    """The certificate of one mode. Raises VerificationFailed."""
    with stages.stage("verify"):
        # Which of Inf and NaN comes of infinite terms depends on the order of a sum, in PyTorch as well: they
        # must stand where eager's stand. Where products were exchanged even that may differ: it is shown.
        finite = any(use.rule.exactness is Exactness.FINITE for use in mode.rewriting.applications)
        informative = {"with Inf"} if finite else set()
        if any(isinstance(s.kernel, Scan) and s.kernel.kind == "product" for s in mode.plan.kernels):
            # So it is where a running product leaves the range of its type: zero times infinity.
            informative |= {"with Inf", "large", "scaled", "heavy-tailed"}
        trials = Trials(trials=default_trials(settings.seed)[:None if mode.plan.kernels else 1],
                        repeats=2 if mode.plan.kernels else 0, unchanged=not mode.plan.kernels,
                        # Other values and other parameters are tried whatever the budget: the model's own hide faults.
                        required=2, budget_seconds=budget.verify_seconds, tolerance=Tolerance(nonfinite="position"),
                        informative=frozenset(informative),
                        # Where float64 is slow or does not fit, a few batch entries stand for all, if they are
                        # independent.
                        sample_axis0=_float64_is_dear(mode, problem.device) and batch_independent(mode.captured))
        make_float64 = (float64_copy if problem.is_instance else
                        lambda model: to_float64(problem.make_model(settings.seed).train(model.training)))
        certificate = certify(lambda: problem.make_model(settings.seed).train(mode.model.training),
                              lambda: new_model(emitted, problem, settings.seed).train(mode.model.training),
                              problem.make_inputs, plan=trials, make_float64=make_float64)
    if not certificate.passed:
        raise VerificationFailed(model=problem.class_name, finding=certificate.sentence())
    return certificate


def _float64_is_dear(mode: ModeProgram, device: torch.device) -> bool:
    """Whether float64 on whole inputs would take seconds (CPU) or more memory than the device has (CUDA)."""
    if device.type == "cpu":
        return graph_work(mode.captured.roots()).operations > _MANY_OPERATIONS
    held = sum(node.bytes for node in (*mode.captured.inputs, *mode.captured.outputs) if node is not None)
    return _VERIFY_COPIES * held > torch.cuda.get_device_properties(device).total_memory


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
        result.append(replace(mode, plan=make_plan(mode.plan.graph, mode.captured, move_bias=True, contractions=small)))
    return result, left


def judge_without_device(problem: Problem, example: list[Any], parts: tuple, device: Device, settings: Settings,
                    stages: Stages) -> list[str]:
    """CUDA kernels on a machine without a GPU: compiled where nvcc is, checked by emulation, not timed."""
    variants, _, _ = parts
    if not variants:
        return []
    notes = ["There is no CUDA device here: the file was not run on a GPU and not timed."]
    with stages.stage("build"):
        if find_cuda_compiler() is None:
            notes.append(NO_CUDA_COMPILER.what)
        else:
            messages = compile_cuda(kernel_source(*parts, cuda=True)[0])
            if messages:
                raise BuildFailed(f"nvcc refused the generated kernels:\n{messages}")
            notes.append("The kernels compile with nvcc for sm_90a.")
    with stages.stage("verify"):
        # The emulation is slow: the same program for fewer batch entries.
        most, few = 2, fewer_entries(example, 2)
        try:
            modes, _ = understand(problem, few, device, settings, stages)
        except KernelwrightError:  # the first axis of the inputs is no batch that could be cut
            most, few = sys.maxsize, example
            modes, _ = understand(problem, few, device, settings, stages)
        modes, left = _with_the_same_contractions(modes, [v.plan for v in variants])
        if left:
            notes.append(f"{left} contraction{'s were' if left > 1 else ' was'} not run, being too much for the "
                         "emulation: PyTorch did the work in this check.")
        text, small = emitted_text(problem, modes, few, "cuda", device)
        emitted = load_emulated(text, kernel_source(*small, cuda=True)[0], problem.name)
        for variant in small[0]:
            training = variant.model.training
            if reason := _misfit(new_model(emitted, problem, settings.seed).train(training), few):
                notes.append(f"Not checked in {variant.mode} mode: {reason}")
                continue
            certificate = certify(
                lambda training=training: problem.make_model(settings.seed).train(training),
                lambda training=training: new_model(emitted, problem, settings.seed).train(training),
                lambda seed: fewer_entries(problem.make_inputs(seed), most),
                plan=Trials(trials=default_trials()[:2], budget_seconds=60, repeats=0))
            if not certificate.passed:
                raise VerificationFailed(model=problem.class_name, finding=certificate.sentence())
            entries = " with 2 batch entries" if most == 2 else ""
            notes.append(f"Checked by emulation on the CPU{entries}, {variant.mode} mode: {certificate.sentence()}")
    return notes
