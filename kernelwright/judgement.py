"""Build, tune, verify and time: what the measurements leave of a planned program, and what they say of it."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import takewhile
from textwrap import shorten
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.algebra.rule import Exactness
from kernelwright.build.emulation import EmulationError, emulation_messages, fewer_entries, load_emulated
from kernelwright.build.module import BuildFailed, check_cpp, compile_cuda, find_cuda_compiler, load_text
from kernelwright.capture.batch import batch_independent
from kernelwright.codegen.generate import KernelFailed, has_skeleton
from kernelwright.codegen.plan_evaluator import filled, values_of
from kernelwright.emit.file import kernel_source
from kernelwright.errors import (
    NO_CUDA_COMPILER,
    ForwardRaised,
    KernelwrightError,
    VerificationFailed,
    describe,
    where_of,
)
from kernelwright.failures import is_ours
from kernelwright.fallback import Level, StepBack, steps_back, whole_mode
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.node import Node
from kernelwright.plan.contraction import Contraction
from kernelwright.plan.kernels import Scan
from kernelwright.plan.planner import ALONE, make_plan
from kernelwright.plan.products import can_contract
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.seeds import seeded
from kernelwright.problem.state import in_mode_of
from kernelwright.programs import (
    ModeProgram,
    Stages,
    apart,
    as_called,
    described_mode,
    distinct,
    emitted_text,
    keeping,
    laid_out,
    new_model,
    original,
    share_tables,
    stepped_back,
    understand,
    without,
    writable,
)
from kernelwright.records import words_of
from kernelwright.roofline.cost import graph_work
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.baselines import COMPILERS, is_slower, time_model
from kernelwright.timing.turns import clock, without_device
from kernelwright.tune import contractions, layouts
from kernelwright.tune.budget import Budget
from kernelwright.tune.regions import SLOWER, losing_regions
from kernelwright.verify.certificate import Certificate, default_trials
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.flatten import flatten
from kernelwright.verify.modes import RECORDED, certify_both
from kernelwright.verify.state import float64_copy, to_float64
from kernelwright.verify.tolerance import Tolerance

REFUSED = "the model with its kernel was not accurate enough"
_MANY_OPERATIONS = 10**10  # a second or so in float64 on a few cores
_EMULATED_OPERATIONS = 10**8  # of a contraction: some seconds a call
_STEPPING = 6  # times the seconds of one check: what stepping back may take before all is given up at once
_EXTREMA = ("amax", "amin", "max_pool", "cummax", "cummin")
_VERIFY_COPIES = 11  # of inputs and outputs that a trial holds at once, float64 counted twice (measured: nearly 10)


def judge(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
          budget: Budget, settings: Settings, stages: Stages
          ) -> tuple[nn.Module, list[ModeProgram], str, dict[str, Certificate], dict[str, Any]]:
    """Choose contractions, drop the regions that lose, choose layouts, verify and time; a mode that is not faster
    keeps the original. Raises VerificationFailed where even the original computation fails."""
    modes = [part for mode in modes for part in with_strides_of_eager(problem, mode, example, device, settings)]
    modes = _with_contractions(problem, modes, example, target, device, budget, settings, stages)
    modes = _without_losers(problem, modes, example, target, device, budget, stages)
    modes = _with_layouts(problem, modes, example, target, device, budget, settings, stages)
    modes, text, emitted, certificates = _certified_modes(problem, modes, example, target, device, budget, settings,
                                                          stages)
    slower, timings = _timed(problem, modes, emitted, example, device, budget, settings, stages)
    if slower:
        modes = [original(m, SLOWER if m.program in slower else "", device) for m in modes]
        with stages.stage("build"):
            modes, text, emitted = _built(problem, modes, example, target, device)
    return new_model(emitted, problem, settings.seed), modes, text, certificates, timings


def with_strides_of_eager(problem: Problem, mode: ModeProgram, example: list[Any], device: Device, settings: Settings
                          ) -> list[ModeProgram]:
    """The mode with its results' strides as eager has them on this device. A trace does not know them: libraries
    choose the order in which they store, and some operators keep other orders of axes than their descriptions say."""
    if not mode.plan.kernels:
        return [mode]
    numbers = flatten(filled(mode.captured.structure, range(len(mode.captured.outputs))))
    strides: dict[bool, list[tuple[int, ...] | None]] = {}
    for recording in mode.recordings:
        model = in_mode_of(problem.make_model(settings.seed), mode.model)
        try:
            with warnings.catch_warnings(), seeded(settings.seed), torch.set_grad_enabled(recording):
                warnings.simplefilter("ignore")
                found = flatten(model(*copy.deepcopy(example)))
        except Exception as error:
            if is_out_of_memory(error):  # for what a backward needs: the certificate compares
                return [mode]
            file = str(problem.path) if problem.path else None
            raise ForwardRaised(model=problem.class_name, exception=describe(error), device=problem.device,
                                where=where_of(error, file)) from error
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
                left, _, _ = _built(problem, modes, example, target, device)
            if left == modes:
                raise failed from None
            modes = left


def _certified_modes(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                     budget: Budget, settings: Settings, stages: Stages
                     ) -> tuple[list[ModeProgram], str, ModuleType, dict[str, Certificate]]:
    """Build and verify; a mode that fails steps back until it passes. The modes, their text, the module that it is,
    and the certificates by mode. Raises VerificationFailed where even the original computation fails."""
    certificates: dict[str, Certificate] = {}
    first_failure: float | None = None
    while True:
        with stages.stage("build"):
            modes, text, emitted = _built(problem, modes, example, target, device)
            misfits = {m.program: reason for m in distinct(modes) if m.plan.kernels and (
                reason := _misfit(as_called(m, _candidate(emitted, problem, m, settings)), example))}
            if misfits:
                modes = [original(m, misfits.get(m.program, ""), device) for m in modes]
                modes, text, emitted = _built(problem, modes, example, target, device)
        failures: dict[Hashable, VerificationFailed] = {}  # by program, or by the name of a mode that fails alone
        separate: set[str] = set()
        checked: list[ModeProgram] = []
        for mode in modes:
            if mode.name in certificates or mode.program in failures:
                checked.append(mode)
                continue
            known = any(m.program == mode.program for m in checked if m.name in certificates)
            certificate = _certified(problem, mode, emitted, budget, settings, stages, brief=known)
            if certificate.passed:
                certificates[mode.name] = certificate
                checked.append(mode)
                continue
            failure = VerificationFailed(model=problem.class_name, finding=certificate.sentence())
            if not mode.plan.kernels:
                raise failure
            failing = mode
            if len(mode.recordings) == 2 and (certificate.recorded is not None or certificate.is_other_computation):
                # What fails is one of two: the other one passed, or is still to be certified.
                parts = apart(mode)
                failing = parts[certificate.recorded is not None]
                if certificate.recorded is not None:
                    certificates[parts[0].name] = certificate.without_recorded()
                checked += parts
            else:
                checked.append(mode)
            if certificate.is_other_computation:  # no program of this graph is what PyTorch computes
                separate.add(failing.name)
            failures[failing.name if failing is not mode or known else mode.program] = failure
        modes = checked
        if not failures:
            return modes, text, emitted, certificates
        first_failure = first_failure or clock()
        whole = clock() - first_failure > _STEPPING * budget.verify_seconds
        stepped: dict[str, ModeProgram] = {}
        for mode in modes:
            failure = failures.get(mode.name) or failures.get(mode.program)
            if failure is None or mode.name in certificates:
                continue
            step, found = _step(mode, failure, device, whole or mode.name in separate)
            again = [stepped_back(mode, step, device, found)]
            if not step.whole:
                again = _without_losers(problem, again, example, target, device, budget, stages)
            if step.level is Level.CONTRACTIONS:  # the library's convolutions may run channels-last
                again = _with_layouts(problem, again, example, target, device, budget, settings, stages)
            stepped[mode.name] = again[0]
        modes = [stepped.get(m.name, m) for m in modes]


def _step(mode: ModeProgram, failure: VerificationFailed, device: Device, whole: bool) -> tuple[StepBack, str]:
    """What to give up next of a mode that failed (all, where ``whole``), and what was found."""
    found = shorten(failure.why.removeprefix("Failed: "), 300)
    reason = f"{REFUSED}: {found}"
    if whole:
        return whole_mode(mode.captured, reason), found
    return next(steps_back(mode.captured, device, reason, mode.rewriting, mode.plan)), found


def _timed(problem: Problem, modes: list[ModeProgram], emitted: ModuleType, example: list[Any], device: Device,
           budget: Budget, settings: Settings, stages: Stages) -> tuple[set[Hashable], dict[str, Any]]:
    """Time the modes: the (rendered) programs that are not faster, and the timings by mode."""
    timings: dict[str, Any] = {}
    slower = set()
    for place, mode in enumerate(distinct(modes) if budget.measures else ()):
        # Compiling a large network twice takes minutes: a quick run compares the mode as constructed.
        compilers = COMPILERS["none" if place and settings.effort == "quick" else settings.baselines]
        with stages.stage("time"):
            candidate = as_called(mode, _candidate(emitted, problem, mode, settings)) if mode.plan.kernels else None
            timing = timings[mode.name] = time_model(
                as_called(mode, mode.model), candidate, example, device=problem.device,
                floor_seconds=described_mode(mode, device).floor_seconds or None,
                budget_seconds=budget.time_seconds / (2 if place and settings.effort == "quick" else 1),
                compilers=compilers, compile_limit_seconds=budget.compile_seconds)
        if mode.plan.kernels and is_slower(timing):
            slower.add(mode.program)
    return slower, timings


def _built(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device
           ) -> tuple[list[ModeProgram], str, ModuleType]:
    """The modes, without kernels that cannot be built, their emitted text, and the module that it is."""
    while True:
        try:
            text, parts = emitted_text(problem, modes, example, target, device)
            with without_device():
                emitted = load_text(text, problem.name)
            share_tables(emitted, problem)
            return modes, text, emitted
        except KernelFailed as failed:
            modes = without(modes, failed, device)
        except BuildFailed as failed:
            refused = _unbuildable(parts, compile_cuda if target == "cuda" else check_cpp)
            modes = without(modes, KernelFailed(refused, failed), device)


def _unbuildable(parts: tuple, messages: Callable[[str], str]) -> list[KernelStep]:
    """The kernels of a text that do not compile by themselves; all where each does. messages: a compiler's."""
    variants, sources, support = parts
    kernels = {sources[step].name: step for variant in variants for step in variant.plan.kernels}
    return [step for step in kernels.values() if messages(f"{support}\n{sources[step].definition}")] \
        or list(kernels.values())


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
        built = [_built(problem, some, example, target, device)[2] for some in (before, list(others.values()))]
    with stages.stage("tune"):
        for mode in before:
            programs = {name: as_called(mode, _candidate(module, problem, mode, settings))
                        for name, module in zip((layouts.FIRST, layouts.LAST), built, strict=True)}
            times = layouts.measured_programs(programs, example, problem.device, seconds_each)
            ratio = layouts.faster(times)
            plan = others.pop(mode.program).plan
            if ratio is not None:
                others[mode.program] = replace(mode, plan=replace(plan, layout=layouts.words(plan, ratio)))
    return [replace(m, plan=replace(others[program].plan, graph=m.rewriting.graph))
            if (program := m.program) in others else m for m in modes]


def _candidate(emitted: ModuleType, problem: Problem, mode: ModeProgram, settings: Settings) -> nn.Module:
    """The emitted model in a mode."""
    return in_mode_of(new_model(emitted, problem, settings.seed), mode.model)


def _misfit(model: nn.Module, example: list[Any]) -> str:
    """Why the kernels of a ModelNew do not fit its own example inputs (not contiguous, say), or ""."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        model(*copy.deepcopy(example))
    messages = [str(w.message) for w in caught if str(w.message).startswith("ModelNew runs the original")]
    return f"the example inputs do not fit its kernels: {messages[0].partition(': ')[2]}" if messages else ""


def _certified(problem: Problem, mode: ModeProgram, emitted: Any, budget: Budget, settings: Settings, stages: Stages,
               *, brief: bool) -> Certificate:
    """The certificate of one mode, with gradients recorded and not. brief: its program passed in another mode."""
    with stages.stage("verify"):
        # Which of Inf and NaN comes of infinite terms depends on the order of a sum, in PyTorch as well: they
        # must stand where eager's stand. Where products were exchanged even that may differ, and so may signs: it is
        # shown. Which of 0.0 and -0.0 is an extremum is the first that was met, and what is divided by it has its sign.
        finite = any(use.rule.exactness is Exactness.FINITE for use in mode.rewriting.applications)
        informative = {"with Inf"} if finite else set()
        signed = not finite and not any(n.op in _EXTREMA for n in mode.captured.nodes())
        if any(isinstance(s.kernel, Scan) and s.kernel.kind == "product" for s in mode.plan.kernels):
            # So it is where a running product leaves the range of its type: zero times infinity.
            informative |= {"with Inf", "large", "scaled", "heavy-tailed"}
        count = 1 if not mode.plan.kernels else RECORDED if brief else None
        planned = default_trials(settings.seed)[:count]
        if problem.device.type == "cuda" and any(c.is_truth and not c.waited for c in mode.captured.checks):
            # Values that the model refuses end in an assertion on the device, which nothing survives.
            planned = tuple(trial for trial in planned if trial.distribution == AS_GIVEN)
        trials = Trials(trials=planned,
                        repeats=2 if mode.plan.kernels else 0, unchanged=not mode.plan.kernels,
                        # Other values and other parameters are tried whatever the budget: the model's own hide faults.
                        required=2, budget_seconds=budget.verify_seconds,
                        tolerance=Tolerance(nonfinite="sign" if signed else "position",
                                            zeros="sign" if signed else "any"),
                        informative=frozenset(informative),
                        # Where float64 is slow or does not fit, a few batch entries stand for all, if they are
                        # independent.
                        sample_axis0=_float64_is_dear(mode, problem.device) and batch_independent(mode.captured))
        make_float64 = (float64_copy if problem.is_instance else
                        lambda model: to_float64(in_mode_of(problem.make_model(settings.seed), model)))
        return certify_both(lambda: in_mode_of(problem.make_model(settings.seed), mode.model),
                            lambda: _candidate(emitted, problem, mode, settings),
                            problem.make_inputs, plan=trials, make_float64=make_float64, recordings=mode.recordings)


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


def judge_without_device(problem: Problem, modes: list[ModeProgram], example: list[Any], device: Device,
                         settings: Settings, stages: Stages) -> tuple[list[ModeProgram], str, list[str]]:
    """CUDA kernels on a machine without a GPU: checked by emulation, compiled where nvcc is, not timed. The modes as
    far as they passed, their text, and notes. Raises VerificationFailed where even the original computation fails."""
    if not any(m.plan.kernels for m in modes):
        return modes, emitted_text(problem, modes, example, "cuda", device)[0], []
    notes = ["There is no CUDA device here: the file was not run on a GPU and not timed."]
    with stages.stage("verify"):
        modes, checked = _emulated(problem, modes, example, device, settings, stages)
    text, parts = emitted_text(problem, modes, example, "cuda", device)
    with stages.stage("build"):
        if not parts[0]:
            pass  # no kernels are left
        elif find_cuda_compiler() is None:
            notes.append(NO_CUDA_COMPILER.what)
        else:
            while parts[0] and (messages := compile_cuda(kernel_source(*parts, cuda=True)[0])):
                failed = BuildFailed(f"nvcc refused the generated kernels:\n{messages}")
                modes = without(modes, KernelFailed(_unbuildable(parts, compile_cuda), failed), device)
                text, parts = emitted_text(problem, modes, example, "cuda", device)
            notes.append("The kernels compile with nvcc for sm_90a.")
    return modes, text, notes + checked


def _emulated(problem: Problem, modes: list[ModeProgram], example: list[Any], device: Device, settings: Settings,
              stages: Stages) -> tuple[list[ModeProgram], list[str]]:
    """The modes as far as the same program for fewer batch entries passes under the emulation, which is slow, and
    notes. What that program gives up, they give up."""
    most, few = 2, fewer_entries(example, 2)
    try:
        small, _ = understand(problem, few, device, settings, stages)
    except KernelwrightError:  # the first axis of the inputs is no batch that could be cut
        most, few = sys.maxsize, example
        small, _ = understand(problem, few, device, settings, stages)
    notes: list[str] = []
    small, left = _with_the_same_contractions(small, [m.plan for m in modes if m.plan.kernels])
    small = writable(small, "cuda", device)
    if left:
        notes.append(f"{left} contraction{'s were' if left > 1 else ' was'} not run, being too much for the "
                     "emulation: PyTorch did the work in this check.")
    checked: dict[str, str] = {}
    while True:
        text, parts = emitted_text(problem, small, few, "cuda", device)
        if not parts[0]:
            return modes, notes + list(checked.values())
        try:
            emitted = load_emulated(text, kernel_source(*parts, cuda=True)[0], problem.name)
        except EmulationError as error:
            if not is_ours(error):
                raise
            failed = KernelFailed(_unbuildable(parts, emulation_messages), error)
            small, modes = without(small, failed, device), without(modes, failed, device)
            continue
        share_tables(emitted, problem)
        failures = {}
        for variant in (v for v in parts[0] if v.mode not in checked):
            like = variant.model
            if reason := _misfit(as_called(variant, in_mode_of(new_model(emitted, problem, settings.seed), like)), few):
                checked[variant.mode] = f"Not checked in {words_of(variant.mode)} mode: {reason}"
                continue
            certificate = certify_both(
                lambda like=like: in_mode_of(problem.make_model(settings.seed), like),
                lambda like=like, module=emitted: in_mode_of(new_model(module, problem, settings.seed), like),
                lambda seed: fewer_entries(problem.make_inputs(seed), most),
                plan=Trials(trials=default_trials()[:2], budget_seconds=60, repeats=0), recorded=1,
                recordings=variant.recordings)
            if certificate.passed:
                entries = " with 2 batch entries" if most == 2 else ""
                checked[variant.mode] = (f"Checked by emulation on the CPU{entries}, {words_of(variant.mode)} mode: "
                                         f"{certificate.sentence()}")
            else:
                failures[variant.mode] = VerificationFailed(model=problem.class_name, finding=certificate.sentence())
        if not failures:
            return modes, notes + list(checked.values())
        steps = {m.name: _step(m, failures[m.name], device, False) for m in small if m.name in failures}
        small = [stepped_back(m, steps[m.name][0], device, steps[m.name][1]) if m.name in steps else m for m in small]
        modes = [_down_to(m, *steps[m.name], device) if m.name in steps else m for m in modes]


def _down_to(mode: ModeProgram, reached: StepBack, found: str, device: Device) -> ModeProgram:
    """The mode with everything given up that a smaller one has: its own steps down to that level."""
    steps = steps_back(mode.captured, device, f"{REFUSED}: {found}", mode.rewriting, mode.plan)
    for step in takewhile(lambda step: step.level <= reached.level, steps):
        mode = stepped_back(mode, step, device, found)
    return mode
