"""BUILD and VERIFY the modes: a mode that fails steps back until it passes, so that there is a file at the end.

Where a check of values fails, what is at fault is looked for first (:mod:`kernelwright.way_back.culprits`), on the
inputs of the trial that failed, and given up alone; where nothing is found, or too often, the least exact goes
(:mod:`kernelwright.way_back.fallback`). All of that may take a few times what one check may, and ends with the budget
of the run: then the whole mode is PyTorch's.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from textwrap import shorten
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.build.library import build_library, built_meanwhile, spare_processors
from kernelwright.build.module import BuildFailed, check_text, kernels_of, load_text
from kernelwright.codegen.generate import TARGETS, KernelFailed
from kernelwright.codegen.reference.plan import values_of
from kernelwright.device_lock import clock, without_device
from kernelwright.errors import ForwardRaised, VerificationFailed, describe, where_of
from kernelwright.failures import is_ours, told
from kernelwright.modes import RECORDED as WITH_GRADIENTS
from kernelwright.modes import ModeProgram, apart, as_called, distinct, original, stepped_back, without
from kernelwright.plan.records import KernelStep
from kernelwright.problem import Problem
from kernelwright.problem.construct import shown_arguments
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.seeds import seeded
from kernelwright.programs import (
    Stages,
    as_captured,
    model_of,
    name_in_file,
    new_model,
    share_large,
    share_tables,
    written,
)
from kernelwright.records import LATE, words_of
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.truths import Truths, float64_maker, inputs_of, meanwhile_of, trials_of
from kernelwright.tune.memory import machine, package_digest, recall, remember
from kernelwright.verify.certificate import Certificate, certify
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.drawn import inputs_of as drawn_inputs
from kernelwright.verify.drawn import set_parameters
from kernelwright.verify.modes import RECORDED, certify_both
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.tolerance import Tolerance
from kernelwright.way_back.culprits import Culprits, at_fault, kernels_at_fault, rules_at_fault
from kernelwright.way_back.fallback import StepBack, steps_back, whole_mode

REFUSED = "the model with its kernel was not accurate enough"
_STEPPING = 6  # times the seconds of one check: what stepping back may take before all is given up at once
#: Of the seconds of a build and check, what the next ones take at least: what float64 said is known.
SHARE_OF_FIRST = 0.5
_LEAST_SECONDS = 2.0  # of a check, however little of the budget is left, by which stepping back is measured
SEARCHES = 3  # of a mode, for what is at fault (then the least exact goes), and of a text, for what does not compile
#: In an emitted file, by model the modes in which calls that record gradients are the original computation's.
STEPS = "_kernelwright_steps"
_CHECKED = "checked"  # what is kept of a mode of a file: how many trials it passed
_EARLIER = "{} mode of this very file passed {} trials in an earlier run; {} of them were run again."


#: Modes, their text, and its parts, as `written` gives them.
File = tuple[list[ModeProgram], str, tuple]
#: Modes that passed, their text, the module that it is, and their certificates by name.
Certified = tuple[list[ModeProgram], str, ModuleType, dict[str, Certificate]]


@dataclass(frozen=True, slots=True)
class Failure:
    """What was wrong with a mode. trial: in which trial, where it was in one, and recorded: whether that one recorded
    gradients. hopeless: no program of the mode's graph passes, or none can be checked."""

    finding: str
    trial: TrialPlan | None = None
    hopeless: bool = False
    recorded: bool = False

    @classmethod
    def of(cls, certificate: Certificate) -> Failure:
        """That of a certificate that did not pass."""
        trials = (certificate.recorded or certificate).trials
        failing = next((t.plan for t in trials if t.gates and not t.passed), None)
        return cls(certificate.sentence().removeprefix("Failed: "), failing, certificate.is_other_computation,
                   certificate.recording or certificate.recorded is not None)

    def passed_in(self, certificate: Certificate) -> bool:
        """Whether another program of the mode, which has this certificate, passed the trial."""
        recorded = certificate if certificate.recording else certificate.recorded
        found = recorded if self.recorded else certificate
        return self.trial is not None and found is not None and self.trial in {t.plan for t in found.trials}


def certified_modes(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                    settings: Settings, stages: Stages, tuned: Callable[[ModeProgram, StepBack], ModeProgram],
                    known: Truths | None = None, *, brief: bool = False, begun: Certified | None = None,
                    before: Certified | None = None) -> Certified:
    """Build and verify; a mode that fails steps back until it passes. The modes, their text, the module that it is,
    and the certificates by mode.

    tuned: tunes again what stepped back. known: what earlier certifications found out about the model, and gets what
    this one does. brief: whether modes are tried with those trials alone that tell most, as one does before
    measurements change the file. begun: these modes as they passed with less, of the same text: they are not built
    again, and are tried with the rest. before: what passed without the changes of measurements; it stays where modes
    fail and there is no time left to find out why. Raises VerificationFailed where even a file without any kernel
    fails, and ForwardRaised where that is because the model does.
    """
    known = known if known is not None else Truths(problem.device)
    certificates: dict[str, Certificate] = {}
    searches: Counter[str] = Counter()
    until: float | None = None
    while True:
        began = clock()
        if begun is not None:
            _, text, emitted, passed = begun
            begun = None
        else:
            passed = {}
            with stages.stage("generate"):
                file = written(problem, modes, example, target, device)
            with stages.stage("build"):
                meanwhile = meanwhile_of(problem, modes, settings, stages, known, brief) if spare_processors() else None
                modes, text, emitted = _fitting(problem, file, example, target, device, settings, meanwhile)
        modes, failures = _checked(problem, modes, text, emitted, certificates, settings, stages, known, brief=brief,
                                   begun=passed)
        if not failures:
            return modes, text, emitted, certificates
        seconds = max(_LEAST_SECONDS, stages.budget.share("verify"))
        until = until or clock() + min(_STEPPING * seconds, stages.budget.left())
        late = until - clock() < SHARE_OF_FIRST * (clock() - began)
        if late and before is not None and (same := _as_before(modes, failures, certificates, before)):
            return same
        stepped: dict[str, ModeProgram] = {}
        culprits: dict[Failure, Culprits] = {}  # modes that run one program have one failure
        for mode in modes:
            failure = failures.get(mode.name) or failures.get(mode.program)
            if failure is None or mode.name in certificates:
                continue
            if mode.backward and failure.recorded:
                stepped[mode.name] = mode.without_backward(f"the program with them failed: {failure.finding}")
                continue
            if not mode.plan.kernels:  # then the file around it is at fault, as far as there is one
                if not any(m.plan.kernels for m in modes):
                    given_by_model(problem, mode, example, settings, recording=False)
                    raise VerificationFailed(model=problem.class_name, finding=f"Failed: {failure.finding}")
                stepped = {m.name: stepped_back(m, whole_mode(m.captured, failure.finding), device, failure.finding)
                           for m in modes if m.plan.kernels}
                certificates.clear()
                break
            whole = failure.hopeless or late
            if not whole and searches[mode.name] < SEARCHES and failure not in culprits:
                with stages.stage("verify", f"which kernel of {words_of(mode.name)} is at fault"):
                    tolerance = trials_of(problem, mode, settings, seconds, brief=True).tolerance_for(
                        failure.trial.distribution if failure.trial is not None else AS_GIVEN)
                    culprits[failure] = culprits_of(problem, mode, failure, target, device, settings, tolerance,
                                                    min(until, clock() + seconds),
                                                    lambda text: build_library(text, target))
            searches[mode.name] += 1
            step, found = step_from(mode, failure, device, culprits.get(failure, Culprits()), whole=whole)
            again = stepped_back(mode, step, device, f"{found} {LATE}" if late and not failure.hopeless else found)
            stepped[mode.name] = again if step.whole else tuned(again, step)
        modes = [stepped.get(m.name, m) for m in modes]
        if before is not None and (same := as_it_was(modes, before)):
            return same


def as_it_was(modes: list[ModeProgram], before: Certified) -> Certified | None:
    """What passed before, with the notes of modes that have stepped back to just that; None for others."""
    earlier, text, emitted, passed = before
    if len(modes) != len(earlier) or any(
            (m.name, m.recordings, m.backward) != (e.name, e.recordings, e.backward) or m.plan is not e.plan
            for m, e in zip(modes, earlier, strict=True)):
        return None
    return modes, text, emitted, passed


def _as_before(modes: list[ModeProgram], failures: dict[Hashable, Failure], certificates: dict[str, Certificate],
               before: Certified) -> Certified | None:
    """What passed before, where that was tried in each trial in which modes fail now; notes say so."""
    earlier, text, emitted, passed = before
    notes: dict[str, str] = {}
    for mode in modes:
        failure = failures.get(mode.name) or failures.get(mode.program)
        if failure is None or mode.name in certificates:
            continue
        name = mode.name if mode.name in passed else mode.name.removesuffix(f"_{WITH_GRADIENTS}")
        if name not in passed or not failure.passed_in(passed[name]):
            return None
        notes[name] = f"{words_of(name).capitalize()} mode stays as it was planned, as what measurements made of it " \
            f"failed: {failure.finding} {LATE}"
    noted = [replace(m, notes=(*m.notes, notes[m.name])) if m.name in notes else m for m in earlier]
    return noted, text, emitted, passed


def _fitting(problem: Problem, file: File, example: list[Any], target: str, device: Device, settings: Settings,
             meanwhile: Callable[[Callable[[], bool]], None] | None = None
             ) -> tuple[list[ModeProgram], str, ModuleType]:
    """The modes built, those without kernels that do not take the example inputs. meanwhile: as in :func:`built`."""
    modes, text, emitted = built(problem, file[0], example, target, device, file, meanwhile)
    misfits = {m.program: reason for m in distinct(modes) if m.plan.kernels and (
        reason := misfit(as_called(m, candidate_of(emitted, problem, m, settings)), example))}
    if not misfits:
        return modes, text, emitted
    return built(problem, [original(m, misfits.get(m.program, ""), device) for m in modes], example, target, device)


def _checked(problem: Problem, modes: list[ModeProgram], text: str, emitted: ModuleType,
             certificates: dict[str, Certificate], settings: Settings, stages: Stages, truths: Truths, *, brief: bool,
             begun: dict[str, Certificate]) -> tuple[list[ModeProgram], dict[Hashable, Failure]]:
    """The modes, those in two whose calls fail in one gradient mode alone, and what failed: by program, or by the name
    of a mode that fails alone. The certificates of those that pass are added to ``certificates``.

    A mode of the very file that passed in an earlier run is tried with less, as is one of a program that passed in
    another mode: with those trials that tell most. Thorough runs try everything. begun: what trials of this very text
    have found, by the mode's name.
    """
    failures: dict[Hashable, Failure] = {}
    checked: list[ModeProgram] = []
    waiting = len({m.program for m in modes if m.name not in certificates})
    seconds = stages.budget.share("verify") / max(1, waiting)
    for mode in modes:
        if mode.name in certificates or mode.program in failures:
            checked.append(mode)
            continue
        known = any(m.program == mode.program for m in checked if m.name in certificates)
        key = _key(problem, mode, text, settings)
        earlier = recall(_CHECKED, key) if key and settings.effort != "thorough" else None
        try:
            certificate = certificate_of(problem, mode, emitted, settings, stages, truths, seconds,
                                     brief=brief or known or earlier is not None, begun=begun.get(mode.name))
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error) or not mode.plan.kernels:
                raise
            failures[mode.name if known else mode.program] = Failure(told(error), hopeless=True)
            checked.append(mode)
            continue
        if certificate.passed:
            certificates[mode.name] = certificate
            checked.append(_with_earlier(mode, certificate, key, earlier) if key else mode)
            continue
        failing = mode
        if len(mode.recordings) == 2 and mode.plan.kernels and not mode.backward and (
                certificate.recorded is not None or certificate.is_other_computation):
            # What fails is one of two: the other one passed, or is still to be certified.
            parts = apart(mode)
            failing = parts[certificate.recorded is not None]
            if certificate.recorded is not None:
                certificates[parts[0].name] = certificate.without_recorded()
            checked += parts
        else:
            checked.append(mode)
        failure = Failure.of(certificate)
        # Another mode of the program may have its gradients from elsewhere.
        alone = failing is not mode or known or (mode.backward and failure.recorded)
        failures[failing.name if alone else mode.program] = failure
    return checked, failures


def wrong_with(problem: Problem, modes: list[ModeProgram], text: str, emitted: ModuleType, settings: Settings,
               stages: Stages, known: Truths) -> str:
    """What is wrong with modes that have passed where they run otherwise compiled kernels, "" where nothing is. text:
    one text for one file and one compilation. known: as in :func:`certified_modes`."""
    with stages.stage("verify"):
        modes = [mode for mode in modes if mode.plan.kernels]
        _, failures = _checked(problem, modes, text, emitted, {}, settings, stages, known, brief=True, begun={})
    return next((failure.finding for failure in failures.values()), "")


def _key(problem: Problem, mode: ModeProgram, text: str, settings: Settings) -> str:
    """What decides whether a mode of a file is right, but for what other files of the user's say, which the trials that
    are run again see; "" where nobody can tell, as of a module from Python."""
    if problem.source is None or problem.is_instance or not mode.plan.kernels:
        return ""
    return repr((machine(problem.device), package_digest(), problem.source, problem.class_name,
                 shown_arguments(problem.init_inputs), mode.name, mode.recordings, settings.seed, settings.tiny, text))


def _with_earlier(mode: ModeProgram, certificate: Certificate, key: str, earlier: dict[str, float] | None
                  ) -> ModeProgram:
    """The mode with a note on the trials of an earlier run that were not run again. What passed more is remembered."""
    count = sum(trial.gates for trial in certificate.trials)
    if earlier is not None and count < earlier["trials"]:
        note = _EARLIER.format(words_of(mode.name).capitalize(), int(earlier["trials"]), count)
        return replace(mode, notes=(*mode.notes, note))
    if count > RECORDED:
        remember(_CHECKED, key, {"trials": count})
    return mode


def given_by_model(problem: Problem, mode: ModeProgram, example: list[Any], settings: Settings, recording: bool,
                   made: nn.Module | None = None) -> Any:
    """What the model gives for the example inputs. recording: whether gradients are recorded. made: the model in this
    mode, where it was made. Raises ForwardRaised, or what says that memory is lacking."""
    model = made if made is not None else model_of(problem, mode, settings)
    try:
        with warnings.catch_warnings(), seeded(settings.seed), torch.set_grad_enabled(recording):
            warnings.simplefilter("ignore")
            return model(*copy.deepcopy(example))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ForwardRaised(model=problem.class_name, exception=describe(error), device=problem.device,
                            where=where_of(error, str(problem.path) if problem.path else None)) from error


def culprits_of(problem: Problem, mode: ModeProgram, failure: Failure, target: str, device: Device, settings: Settings,
                tolerance: Tolerance, until: float, build: Callable[[str], ctypes.CDLL],
                make_inputs: Callable[[int], list[Any]] | None = None) -> Culprits:
    """What is at fault in a mode, by the inputs and parameters of the trial that failed; nothing, where that does not
    show. make_inputs: where they are not the problem's own."""
    if failure.trial is None:
        return Culprits()
    try:
        model = model_of(problem, mode, settings)
        set_parameters(model, failure.trial)
        given = drawn_inputs(failure.trial, make_inputs or inputs_of(problem, mode, settings))
        values = values_of(model, mode.captured, given)
        if rules := rules_at_fault(mode.captured, mode.rewriting, device, values, problem.device, tolerance, until):
            return Culprits(rules=tuple(rules))
        return kernels_at_fault(mode.plan, values, target, problem.device, build, tolerance, until)
    except Exception as error:
        if not is_ours(error) and not is_out_of_memory(error):
            raise
        return Culprits()


def step_from(mode: ModeProgram, failure: Failure, device: Device, culprits: Culprits, *, whole: bool = False
              ) -> tuple[StepBack, str]:
    """What to give up next of a mode that failed (all, where ``whole``), and what was found."""
    found = shorten("; ".join((*culprits.found, failure.finding)), 300)
    reason = f"{REFUSED}: {found}"
    if whole:
        return whole_mode(mode.captured, reason), found
    return next(steps_back(mode.captured, device, reason, mode.rewriting, mode.plan, culprits)), found


def built(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
          file: File | None = None, meanwhile: Callable[[Callable[[], bool]], None] | None = None
          ) -> tuple[list[ModeProgram], str, ModuleType]:
    """The modes, without kernels that cannot be built, their emitted text, and the module that it is.

    Those of a text that does not compile are looked for a few times; then all kernels go. file: the modes' as it was
    written, where it was. meanwhile: called while the first text is compiled, with what tells whether it still is.
    """
    builds = itertools.count()
    while True:
        attempt = next(builds)
        modes, text, parts = file or written(problem, modes, example, target, device)
        file = None
        if meanwhile is not None and not attempt and (kernels := kernels_of(text)):
            with built_meanwhile(kernels, target, name_in_file(problem)) as going_on:
                meanwhile(going_on)
        try:
            with without_device():
                emitted = load_text(text, problem.name)
            share_tables(emitted, problem)
            return modes, text, emitted
        except BuildFailed as failed:
            messages = partial(check_text, target=TARGETS[target])
            refused = unbuildable(parts, messages) if attempt < SEARCHES else []
            modes = without(modes, KernelFailed(refused, failed), device)
        except Exception as error:  # the file's own code fails: no kernel is known to be at fault
            if not is_ours(error) or is_out_of_memory(error):
                raise
            modes = without(modes, KernelFailed([], error), device)


def unbuildable(parts: tuple, messages: Callable[[str], str]) -> list[KernelStep]:
    """The kernels of a text that do not compile, by halves; all where each does. messages: a compiler's."""
    variants, sources, support = parts
    kernels = list({sources[step].name: step for variant in variants for _, plan in variant.programs()
                    for step in plan.kernels}.values())

    def fails(kept: Sequence[KernelStep]) -> bool:
        return bool(messages("\n".join((support, *(sources[step].definition for step in kept)))))

    return at_fault(kernels, fails, inf) or kernels


def candidate_of(emitted: ModuleType, problem: Problem, mode: ModeProgram, settings: Settings) -> nn.Module:
    """The emitted model in a mode."""
    return as_captured(problem, mode.model, new_model(emitted, problem, settings.seed), settings.seed)


def misfit(model: nn.Module, example: list[Any]) -> str:
    """Why the kernels of a ModelNew do not fit its own example inputs (not contiguous, say), or ""."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            model(*copy.deepcopy(example))
        except Exception as error:  # a certificate says the same, and of which inputs
            if not is_ours(error) or is_out_of_memory(error):
                raise
    messages = [str(w.message) for w in caught if str(w.message).startswith("ModelNew runs the original")]
    return f"the example inputs do not fit its kernels: {messages[0].partition(': ')[2]}" if messages else ""


def as_kernels(candidate: nn.Module, emitted: Any) -> nn.Module:
    """An emitted model whose calls run kernels where they can, whatever was asked of calls before."""
    return _after_steps(candidate, emitted, {None})


def after_a_step(candidate: nn.Module, emitted: Any) -> nn.Module:
    """An emitted model as it is after steps of training in both modes."""
    return _after_steps(candidate, emitted, {False, True})


def _after_steps(candidate: nn.Module, emitted: Any, modes: set[bool | None]) -> nn.Module:
    known = getattr(emitted, STEPS, {}).setdefault(candidate, set())
    known.clear()
    known.update(modes)
    return candidate


def certificate_of(problem: Problem, mode: ModeProgram, emitted: Any, settings: Settings, stages: Stages,
               truths: Truths, seconds: float, *, brief: bool, begun: Certificate | None) -> Certificate:
    """The certificate of one mode, with gradients recorded and not. brief: its program passed in another mode. begun:
    of fewer trials, which are not run again.

    Where no kernels find gradients, what calls that record them do after a step is tried, too, and held against eager.
    """
    make_float64 = float64_maker(problem, mode, settings)
    make_model = cache(lambda: candidate_of(emitted, problem, mode, settings))  # one for both
    with stages.stage("verify", words_of(mode.name)):
        plan = trials_of(problem, mode, settings, seconds, brief=brief)
        known, make_inputs = truths.of(mode), inputs_of(problem, mode, settings)

        def make_eager() -> nn.Module:
            return share_large(model_of(problem, mode, settings), mode.model)

        found = certify_both(make_eager, lambda: as_kernels(make_model(), emitted), make_inputs, plan=plan,
                             make_float64=make_float64, recordings=mode.recordings, kept=known, begun=begun)
        if not found.passed or plan.unchanged or mode.backward or begun is not None or True not in mode.recordings:
            return found
        try:
            after = certify(
                make_eager, lambda: after_a_step(make_model(), emitted), make_inputs, make_float64=make_float64,
                kept=known, plan=replace(plan, recording=True, trials=plan.trials[:1], repeats=0))
        except Exception as error:  # as of trials that record gradients
            if not is_out_of_memory(error):
                raise
            return found
        return found if after.passed else replace(
            found, passed=False, why=(f"After a step of training: {after.sentence()}", *after.why))
