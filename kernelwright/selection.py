"""Tune, build, verify and time: what the measurements leave of a planned program, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.capture.carried import IN_PLACE
from kernelwright.codegen.generate import TARGETS
from kernelwright.codegen.reference.plan import filled
from kernelwright.device_lock import clock
from kernelwright.errors import KernelwrightError
from kernelwright.failures import is_ours, told
from kernelwright.launching import Direct, as_measured, graphs_wanted, in_one_launch, runs_as_graph, with_graph
from kernelwright.modes import ModeProgram, apart, as_called, described_mode, distinct, given_up, laid_out, original
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory, release
from kernelwright.programs import Stages, model_of, new_model, written
from kernelwright.records import UNTRIED, words_of
from kernelwright.roofline.cost import graph_seconds
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.baselines import (
    CANDIDATE,
    EAGER,
    Timing,
    compilers_of,
    graph_pays,
    graph_promises,
    is_slower,
    launches_matter,
    time_model,
)
from kernelwright.training.planned import with_backward
from kernelwright.training.steps import faster_steps
from kernelwright.tune.budget import Budget
from kernelwright.tune.regions import SLOWER
from kernelwright.tuned import Tuning
from kernelwright.verified import (
    SHARE_OF_FIRST,
    Certified,
    Truths,
    as_it_was,
    built,
    candidate_of,
    certified_modes,
    given_by_model,
)
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.flatten import flatten
from kernelwright.verify.state import State

#: Of timing a program, however little of the budget is left: without it nobody knows whether the file pays.
_LEAST_SECONDS = 0.2
#: Of the time for timing, the share that steps of training have: a step is a call and its backward.
_STEPS = 0.5
#: Of a run, what building and checking kernels for gradients may take beside measurements that wait.
_MOST_FOR_STEPS = 0.3
#: The share of what is left of a run, baselines included, that tuning has where its own time is over.
_LEAST_TUNING = 0.1
#: Calls of the model that a first build and check of a mode takes as long as (68 and 71 of networks with 0.3 and 0.45 s
#: a call on an H200): they are made in float64, in float32 with and without gradients, and several times each.
_CHECK_CALLS = 70
#: Of a file's compilation: that of a network took 5 s on 16 cores.
_BUILD_SECONDS = 5.0
NO_MEMORY_FOR_KERNELS = "there is not the memory to check kernels beside the model"
NO_MEMORY = "The device had no memory for further trials, and none for what measurements would have changed."
#: Of files for a device, whose steps of training are the original computation's.
QUICK_STEPS = "Quick effort makes no kernels for gradients on a device: steps of training run the original " \
    "computation. `--effort normal` makes them."
NO_STEPS = "make kernels for gradients: steps of training run the original computation. More of `--budget` has it."
#: Why PyTorch keeps the operators of a mode in which no kernel pays.
ONE_LAUNCH = "no kernel of ours pays here; all calls are one launch"
#: A program that loses in fewer calls than these is called so often, where that takes no more than this share of a run.
_FEW, _HASTY_SHARE = 5, 0.1


def select(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
           settings: Settings, stages: Stages, keep: Callable[[str], None] = lambda text: None,
           truths: Truths | None = None
           ) -> tuple[nn.Module, list[ModeProgram], str, dict[str, Certificate], dict[str, Any]]:
    """Build what was planned and check it briefly, then choose contractions, drop the regions that lose and choose
    layouts by measurement, verify what that made of it, and time it; a mode that is not faster keeps the original.

    keep: gets the text of each file that passed its check, the last time before it is timed. truths: gets what is found
    out about the model. Raises VerificationFailed where even a file without any kernel fails.
    """
    planned = [part for mode in modes for part in with_strides_of_eager(problem, mode, example, device, settings)]
    tuning, budget = Tuning(problem, example, target, device, settings, stages), stages.budget
    # A device's compiler takes as long again for a backward, and checks take twice as long: calls come before steps.
    steps_last = not TARGETS[target].on_host and budget.measures
    if not steps_last:
        planned = [with_backward(part, example, device, stages) for part in planned]
    truths = truths if truths is not None else Truths(problem.device)

    def certified(modes: list[ModeProgram], **how: Any) -> Certified:
        return certified_modes(problem, modes, example, target, device, settings, stages, tuning.after, truths, **how)

    tuning.predicts, has_memory = _is_hurried(planned, device, budget), True
    known = tuning.first(planned)
    tuning.build_ahead(planned)
    began = clock()
    try:
        first = None
        while first is None:
            first = _in_memory(partial(certified, known, brief=budget.measures), truths,
                               last=not any(m.plan.kernels for m in known))
            if first is None and tuning.predicts and any(m.plan.contractions for m in known):
                tuning.predicts = has_memory = False  # for their packed operands
                known = tuning.first(planned)
            elif first is None:
                known = planned = [original(m, NO_MEMORY_FOR_KERNELS, device) for m in planned]
        modes, text, emitted, certificates = first
        took = clock() - began
    finally:
        tuning.stop_building()
    keep(text)
    if budget.measures and any(m.backward for m in modes):
        kept = faster_steps(problem, modes, emitted, example, settings, stages,
                            max(_LEAST_SECONDS, _STEPS * budget.share("time")))
        lost = any(old.backward and not m.backward for m, old in zip(kept, modes, strict=True))
        first = certified(kept, brief=True) if lost else (kept, text, emitted, certificates)
        modes, text, emitted, certificates = first
        keep(text)
        settled = {m.name: m for m in modes}
        planned = [replace(p, backward=m.backward, notes=m.notes) if (m := settled.get(p.name)) is not None else p
                   for p in planned]
    if budget.measures:
        before = {(k.name, k.recordings, id(k.plan)): p for k, p in zip(known, planned, strict=True)}
        same = [before.get((m.name, m.recordings, id(m.plan))) for m in modes]
        tuning.settled |= {m.name for m, p in zip(modes, same, strict=True) if p is None}  # what stepped back goes on
        seconds = tuning_seconds(budget, took)
        # What is known was asked at first: without time nothing is added to it but what is predicted.
        better, other = modes, text
        tuning.predicts = has_memory
        planned = [p or m for m, p in zip(modes, same, strict=True)]
        if seconds or budget.until_end() >= SHARE_OF_FIRST * took:
            better = tuning.modes(planned, seconds)
            better, other, _ = written(problem, better, example, target, device)
        budget.done("tune")
        untried, checked = tuning.untried, True
        if other == text:  # it stays as it is, and gets its other trials
            modes, text, emitted, certificates = \
                _in_memory(partial(certified, better, begun=first), truths) or _without_memory(first)
        elif budget.until_end() >= SHARE_OF_FIRST * took:  # a better file before the baselines of others
            modes, text, emitted, certificates = \
                _in_memory(partial(certified, better, before=first), truths) or _without_memory(first)
        else:
            checked = False
            untried = [f"{UNTRIED}build and check what the measurements would change; a further run, which "
                       "knows them, has it.", *untried]
        keep(text)
        # What waits is measured in what the checks have left, for as long as what was measured passes.
        goes_on = checked and _as_tuned(modes, better)
        reserved = _steps_take(budget, took) if steps_last and settings.effort != "quick" and any(
            map(_may_step, modes)) else 0.0
        while goes_on and (waiting := tuning.waiting) and (seconds := further_seconds(budget, took + reserved)):
            better = tuning.modes(planned, seconds)
            better, other, _ = written(problem, better, example, target, device)
            untried = tuning.untried
            if other != text:
                last = modes, text, emitted, certificates
                modes, text, emitted, certificates = \
                    _in_memory(partial(certified, better, before=last), truths) or _without_memory(last)
                keep(text)
                goes_on = _as_tuned(modes, better)
            goes_on = goes_on and tuning.waiting < waiting
        if steps_last:
            modes, text, emitted, certificates = _with_steps(problem, (modes, text, emitted, certificates), example,
                                                             device, settings, stages, took, certified)
            keep(text)
        modes = [replace(m, notes=(*m.notes, *untried)) for m in modes]
    alone = settings.baselines == "none"
    slower, timings = _timed(problem, modes, emitted, example, device, settings, stages, compare=alone, choose=True)
    lesser = {m.name: tuning.less(m) for m in modes if slower.get(m.program) == SLOWER}
    while lesser and budget.left() >= SHARE_OF_FIRST * took:
        fewer = {name: mode for name, found in lesser.items() if (mode := _next(found)) and mode.plan.kernels}
        if not fewer:
            break
        modes, text, emitted, certificates = certified([fewer.get(m.name, m) for m in modes])
        changed = [m for m in modes if m.name in fewer]
        again, times = _timed(problem, changed, emitted, example, device, settings, stages, compare=alone, choose=True)
        slower, timings = again | {m.program: slower[m.program] for m in modes
                                   if m.name not in fewer and m.program in slower}, timings | times
        lesser = {m.name: lesser[m.name] for m in modes if m.name in fewer and again.get(m.program) == SLOWER}
    launched = as_measured(modes, timings)
    if graphs_wanted(settings, target) and budget.left() >= SHARE_OF_FIRST * took:
        wanted = _in_one_launch(modes, slower, timings, device)
        if wanted:
            found, passed, times = _faster_in_one_launch(problem, wanted, example, target, device, settings, stages,
                                                         tuning, truths)
            launched = [part for m in launched for part in _launched(m, found.get(m.name))]
            certificates, timings = certificates | passed, timings | times
    budget.done("verify")
    if any(new is not old for new, old in zip(launched, modes, strict=True)):
        with stages.stage("build"):
            modes, text, emitted = built(problem, launched, example, target, device)
        keep(text)
    if not alone:  # what others compile takes its time: beside programs that stay
        budget.baselines_begin()
        alone_timings = timings
        slower, timings = _timed(problem, modes, emitted, example, device, settings, stages, compare=True,
                                 before=alone_timings)
        timings = {name: replace(timing, launch=alone_timings[name].launch, launches=alone_timings[name].launches)
                   if name in alone_timings else timing for name, timing in timings.items()}
    tuning.leave_building()
    if slower:
        left = [given_up(m, SLOWER, device) if slower.get(m.program) == SLOWER
                else [original(m, slower.get(m.program, ""), device)] for m in modes]
        for mode, parts in zip(modes, left, strict=True):
            for part in parts:  # each was tried and timed with the other
                certificates |= {part.name: certificates[mode.name]} if mode.name in certificates else {}
                timings |= {part.name: timings[mode.name]} if mode.name in timings else {}
        with stages.stage("build"):
            modes, text, emitted = built(problem, list(chain.from_iterable(left)), example, target, device)
    modes = [replace(m, regions=tuning.measured(m)) for m in modes]
    return new_model(emitted, problem, settings.seed), modes, text, certificates, timings


def _is_hurried(modes: list[ModeProgram], device: Device, budget: Budget) -> bool:
    """Whether a first build and check, by what PyTorch's calls are predicted to take, leave nothing of a run in which
    measurements would do."""
    took = _BUILD_SECONDS + _CHECK_CALLS * sum(graph_seconds(m.captured.roots(), device) for m in distinct(modes))
    return budget.until_end() - (1 + SHARE_OF_FIRST) * took < _LEAST_TUNING * budget.seconds


def _in_memory(certify: Callable[[], Certified], truths: Truths, *, last: bool = False) -> Certified | None:
    """What a certification gives; None where there is not the memory for it, which is then free for another one. last:
    there is no other."""
    try:
        return certify()
    except Exception as error:
        if last or not is_out_of_memory(error):
            raise
    truths.forget()
    release()
    return None


def _without_memory(first: Certified) -> Certified:
    """What passed first, with a note that nothing more was tried."""
    modes, text, emitted, certificates = first
    return [replace(m, notes=(*m.notes, NO_MEMORY)) for m in modes], text, emitted, certificates


def _in_one_launch(modes: list[ModeProgram], slower: Mapping[Hashable, str], timings: Mapping[str, Timing],
                   device: Device) -> list[ModeProgram]:
    """The modes in which no kernel pays and launches matter, as one graph of PyTorch's own calls. slower: the programs
    that are given up, with the reason."""
    of_program = {m.program: timings[m.name] for m in distinct(modes) if m.name in timings}
    found = [in_one_launch(m, device, slower.get(m.program, ONE_LAUNCH)) for m in modes
             if (m.program in slower or not m.plan.kernels)
             and (timing := of_program.get(m.program)) is not None and graph_promises(timing)]
    return [m for m in found if m is not None]


def _launched(mode: ModeProgram, in_one: ModeProgram | None) -> list[ModeProgram]:
    """A mode, or what its calls are in one launch: those that record no gradients, beside the others where kernels find
    these."""
    return [mode] if in_one is None else [in_one, apart(mode)[-1]] if mode.backward else [in_one]


def _faster_in_one_launch(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                          settings: Settings, stages: Stages, tuning: Tuning, truths: Truths
                          ) -> tuple[dict[str, ModeProgram], dict[str, Certificate], dict[str, Timing]]:
    """Those modes by name that pass their checks and are faster than eager in one launch, with what was found; the
    others stay as they are, as they do where there is no memory for an attempt."""
    try:
        modes, _, emitted, certificates = certified_modes(problem, modes, example, target, device, settings, stages,
                                                          tuning.after, truths)
        slower, timings = _timed(problem, modes, emitted, example, device, settings, stages, compare=False)
    except Exception as error:
        if not (isinstance(error, KernelwrightError) or is_ours(error) or is_out_of_memory(error)):
            raise
        stages.say(f"All calls in one launch: {told(error)}")
        return {}, {}, {}
    timed = {m.program: timings[m.name] for m in distinct(modes) if m.name in timings}
    # What no graph was recorded of ran call by call.
    found = {m.name: m for m in modes if m.program not in slower and timed[m.program].graph_bytes is not None}
    return found, {name: certificates[name] for name in found}, {name: timed[m.program] for name, m in found.items()}


def tuning_seconds(budget: Budget, took: float) -> float:
    """Seconds for measurements: their share of the run, or the least of what is left of it, as long as time stays to
    build, check and time what they change. took: seconds of the first build and check."""
    wanted = max(budget.share("tune"), _LEAST_TUNING * budget.until_end())
    return max(0.0, min(wanted, budget.until_end() - SHARE_OF_FIRST * took - _LEAST_SECONDS))


def _as_tuned(modes: list[ModeProgram], tuned: list[ModeProgram]) -> bool:
    """Whether modes passed as they were tuned: none stepped back."""
    return len(modes) == len(tuned) and all(m.plan is t.plan and m.backward is t.backward
                                            for m, t in zip(modes, tuned, strict=True))


def further_seconds(budget: Budget, took: float) -> float:
    """Seconds for what waits after a first round of measurements: what of the run is left before baselines, but for a
    build and a check and for the clock; 0 where that is not worth a round."""
    seconds = budget.left() - took - budget.share("time") - _LEAST_SECONDS
    return seconds if seconds >= _LEAST_TUNING * budget.seconds else 0.0


def _with_steps(problem: Problem, before: Certified, example: list[Any], device: Device, settings: Settings,
                stages: Stages, took: float, certify: Callable[..., Certified]) -> Certified:
    """What passed, with kernels for the gradients of modes of training where steps are faster by them; a note says why
    there are none. took: seconds of the first build and check."""
    modes = before[0]
    if not any(map(_may_step, modes)):
        return before
    if settings.effort == "quick":
        return _noted(before, _may_step, QUICK_STEPS)
    if not _steps_fit(stages.budget, took):
        return _noted(before, _may_step, f"{UNTRIED}{NO_STEPS}")
    planned = [with_backward(m, example, device, stages) for m in modes]
    if not any(m.backward for m in planned):
        return before
    try:
        found = certify(planned, before=before)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return _without_memory(before)
    if not any(m.backward for m in found[0]):
        return found
    kept = faster_steps(problem, found[0], found[2], example, settings, stages,
                        max(_LEAST_SECONDS, _STEPS * stages.budget.share("time")))
    if all(m.backward is old.backward for m, old in zip(kept, found[0], strict=True)):
        return found
    return as_it_was(kept, before) or certify(kept, before=before)


def _may_step(mode: ModeProgram) -> bool:
    """Whether a mode may have kernels for its gradients."""
    return mode.model.training and True in mode.recordings and bool(mode.plan.kernels)


def _steps_take(budget: Budget, took: float) -> float:
    """Seconds to build and check kernels for gradients; 0 where that is so much of a run that calls come before it."""
    seconds = (1 + SHARE_OF_FIRST) * took
    return seconds if seconds <= _MOST_FOR_STEPS * budget.seconds else 0.0


def _steps_fit(budget: Budget, took: float) -> bool:
    """Whether there is the time to build and check kernels for gradients, and to time what came of it."""
    return budget.left() - budget.share("time") >= (1 + SHARE_OF_FIRST) * took


def _noted(before: Certified, of: Callable[[ModeProgram], bool], note: str) -> Certified:
    """What passed, where some modes get a note."""
    modes, text, emitted, passed = before
    return [replace(m, notes=(*m.notes, note)) if of(m) else m for m in modes], text, emitted, passed


def _next(found: Iterator[ModeProgram]) -> ModeProgram | None:
    """The next program of fewer kernels; None where there is none, or none can be planned."""
    try:
        return next(found, None)
    except Exception as error:
        if not is_ours(error) or is_out_of_memory(error):
            raise
        return None


def with_strides_of_eager(problem: Problem, mode: ModeProgram, example: list[Any], device: Device, settings: Settings
                          ) -> list[ModeProgram]:
    """The mode with its results' strides as eager has them on this device. A trace does not know them: libraries
    choose the order in which they store, and some operators keep other orders of axes than their descriptions say."""
    if not mode.plan.kernels:
        return [mode]
    numbers = flatten(filled(mode.captured.structure, range(len(mode.captured.outputs))))
    for name, structure in mode.captured.left:
        numbers |= flatten(structure, f"attribute {name.removesuffix(IN_PLACE)}")
    strides: dict[bool, list[tuple[int, ...] | None]] = {}
    model: nn.Module | None = None  # one for all calls: a large one takes a while
    for recording in mode.recordings:
        try:
            if model is None:
                model = model_of(problem, mode, settings)
            found = flatten(given_by_model(problem, mode, example, settings, recording, model))
            for name, value in State.of(model, owned=False).attributes.items():
                found |= flatten(value, f"attribute {name}")
        except Exception as error:
            if is_out_of_memory(error):  # for what a backward needs: the certificate compares
                return [mode]
            raise
        strides[recording] = [None] * len(mode.captured.outputs)
        for path, number in numbers.items():
            result = found.get(path)
            # Of another shape it is another computation, as the certificate finds.
            if isinstance(number, int) and isinstance(result, torch.Tensor) \
                    and tuple(result.shape) == mode.captured.outputs[number].shape:
                strides[recording][number] = tuple(result.stride())
    return laid_out(mode, strides, device)


def _timed(problem: Problem, modes: list[ModeProgram], emitted: ModuleType, example: list[Any], device: Device,
           settings: Settings, stages: Stages, *, compare: bool, choose: bool = False,
           before: Mapping[str, Timing] = MappingProxyType({})) -> tuple[dict[Hashable, str], dict[str, Any]]:
    """Time the modes: the (rendered) programs that are not faster, or fail under the clock, with the reason, and the
    timings by mode. compare: whether to compile the baselines, and time them, too. choose: whether programs that run as
    graphs are timed without, too, unless graphs were asked for. before: earlier timings, which say what is worth
    compiling."""
    timings: dict[str, Any] = {}
    slower: dict[Hashable, str] = {}
    budget, programs = stages.budget, distinct(modes)
    for place, mode in enumerate(programs if budget.measures else ()):
        # Compiling a large network twice takes minutes: a quick run compares the mode as constructed.
        compilers = compilers_of("none" if not compare or (place and settings.effort == "quick")
                                 else settings.baselines, problem.device,
                                 launches=mode.name in before and launches_matter(before[mode.name]))
        if choose and mode.graph and not mode.plan.kernels:  # whether one launch of all calls may pay
            compilers |= compilers_of("graph", problem.device)
        try:
            with stages.stage("time", words_of(mode.name)):
                own = candidate_of(emitted, problem, mode, settings) if mode.runs else None
                candidate = as_called(mode, own) if own is not None else None
                chooses = choose and own is not None and settings.launch == "auto" and runs_as_graph(emitted, mode)
                timed = partial(
                    time_model, as_called(mode, mode.model), candidate, example, device=problem.device,
                    floor_seconds=described_mode(mode, device).floor_seconds or None,
                    budget_seconds=max(_LEAST_SECONDS, budget.share("time") / (len(programs) - place)),
                    compilers=compilers, compile_limit_seconds=budget.share("baselines"),
                    direct=as_called(mode, Direct(own, emitted)) if chooses else None)
                timing = timed()
                if candidate is not None and _loses(mode, timing) and not compilers and _is_hasty(timing, budget):
                    timing = timed(repetitions=_FEW)
                timings[mode.name] = timing if own is None else with_graph(timing, emitted, own)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error) or not mode.runs:
                raise
            slower[mode.program] = told(error)
            continue
        if mode.runs and _loses(mode, timing):
            slower[mode.program] = SLOWER
    return slower, timings


def _loses(mode: ModeProgram, timing: Timing) -> bool:
    """Whether a program is not worth it. What is PyTorch's calls in one launch takes the device as long as before."""
    if mode.one_launch:
        return not graph_pays(timing.entries[CANDIDATE], timing.entries[EAGER])
    return is_slower(timing)


def _is_hasty(timing: Timing, budget: Budget) -> bool:
    """Whether a program was called too seldom for a judgement that gives it up, and a few calls more are not dear."""
    entries = timing.entries.values()
    return min(t.repetitions for t in entries) < _FEW and \
        _FEW * sum(t.median for t in entries) < max(_LEAST_SECONDS, _HASTY_SHARE * budget.seconds)
