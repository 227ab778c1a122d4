"""From a file for the model's own floating-point type to one that serves further ones: kernels for the model after
``.bfloat16()`` or its like, made, tuned and certified as the first were, and put into one file with these.

A type is one more thing that a call is asked for: a file's modes stand by type, and each has its own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.build.emulation import load_emulated
from kernelwright.build.module import BuildFailed, compile_cuda, find_cuda_compiler, kernels_of, load_text
from kernelwright.capture.forms import flat
from kernelwright.codegen.generate import is_here
from kernelwright.containers import restored
from kernelwright.deploy.embedded import Emitted, Tried
from kernelwright.device_lock import without_device
from kernelwright.emit.embedded import Library
from kernelwright.emit.runtime_dtypes import type_functions
from kernelwright.emulated import select_without_device
from kernelwright.errors import DtypesInvalid, KernelwrightError
from kernelwright.failures import is_ours, told
from kernelwright.launching import graphs_wanted
from kernelwright.modes import ModeProgram, as_called, distinct
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages, emitted_text, new_model, share_tables, understand, written
from kernelwright.records import words_of
from kernelwright.roofline.devices import Device
from kernelwright.selection import select
from kernelwright.settings import Settings
from kernelwright.truths import Truths
from kernelwright.tune.budget import budget_of
from kernelwright.verified import candidate_of, certificate_of, misfit
from kernelwright.verify.certificate import Certificate

# An emitted file asks of which type a call is by the very same functions.
_of_runtime: dict[str, Any] = {"torch": torch}
exec(compile(type_functions(), "<kernelwright dtypes>", "exec"), _of_runtime)

#: The methods of modules that convert to each type.
_METHODS = {"float16": "half", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class OfDtype:
    """What serves one type: the problem as converted to it, its modes, its example inputs, and what is known of the
    model so converted."""

    dtype: str
    problem: Problem
    modes: tuple[ModeProgram, ...]
    example: list[Any]
    truths: Truths


@dataclass(frozen=True, slots=True)
class ServedDtypes:
    """A file for several types, the modes of all types with their certificates and times by name, sentences for the
    report, and what serves each type."""

    file: Emitted
    modes: list[ModeProgram]
    certificates: dict[str, Certificate]
    timings: dict[str, Any]
    notes: list[str]
    served: list[OfDtype]

    def by_type(self) -> dict[str, tuple[Problem, list[Any]]]:
        """The problem as converted to each type, and its example inputs; the model's own type first."""
        return {one.dtype: (one.problem, one.example) for one in self.served}


def own_dtype(model: nn.Module, example: Sequence[Any]) -> str | None:
    """The floating-point type of a call, as an emitted file sees it: of the arguments, else of the model; None where
    there is none."""
    found = _of_runtime["_kernelwright_dtype"](flat(example)[0]) or _of_runtime["_kernelwright_dtype_of_model"](model)
    return None if found is None else str(found).removeprefix("torch.")


def converted(problem: Problem, dtype: str) -> Problem:
    """The problem with the model's parameters and buffers, and all tensors among its inputs, converted to a type, where
    they are of a floating-point type: as ``model.bfloat16()`` and its like, and ``x.to(dtype)`` do."""
    wanted = getattr(torch, dtype)

    def build_model(*arguments: Any) -> nn.Module:
        return getattr(problem.build_model(*arguments), _METHODS[dtype])()

    def build_inputs(seed: int) -> list[Any]:
        leaves, structure = flat(problem.build_inputs(seed))
        return restored(structure, [_as(leaf, wanted) for leaf in leaves])

    return replace(problem, build_model=build_model, build_inputs=build_inputs)


def _as(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def serving_dtypes(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device,
                   settings: Settings, stages: Stages, timings: Mapping[str, Any], truths: Truths
                   ) -> ServedDtypes | list[str]:
    """One file of these modes and those of further types; or why there is none, and the file stays as it is.

    modes, timings, truths: of the model's own type. Each type gets a budget as the first one had it. What does not run,
    or fails its certificate, in some type is left out, and said. Without the target's device kernels are tried by
    emulation, each type by itself, and compiled where there is a compiler. Raises DtypesInvalid (KW408) for a model
    without a floating-point type.
    """
    own = own_dtype(problem.make_model(settings.seed), example)
    if own is None:
        raise DtypesInvalid(asked=", ".join(settings.dtypes), found="neither the model nor its inputs have tensors "
                            "of a floating-point type")
    served = [OfDtype(own, problem, tuple(replace(m, dtype=own) for m in modes), example, truths)]
    times, notes = dict(timings), list[str]()
    for dtype in settings.dtypes:
        if dtype == own:
            continue
        try:
            found, measured, said = _of_dtype(problem, dtype, target, device, settings, stages)
        except KernelwrightError as error:
            notes.append(f"There are no kernels for {dtype}: {error.what.rstrip('.')}.")
            continue
        served.append(found)
        times |= measured
        notes += [f"{dtype}: {note}" for note in said]
    while len(served) > 1 and any(m.runs for one in served for m in one.modes):
        emit = _emitting(served, target, device)
        try:
            text, emitted = _file_of(served, emit, target, stages)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            return [*notes, f"The file serves {own} alone: {told(error).rstrip('.')}."]
        certificates, failures = (dict[str, Certificate](), dict[str, str]()) if not is_here(target) else \
            _certified(served, emitted, settings, stages)
        if own in failures:
            return [*notes, f"The file serves {own} alone: beside others {failures[own]}"]
        if not failures:
            module = new_model(emitted, problem, settings.seed) if is_here(target) else None
            tried = [Tried(one.problem, list(one.modes), one.truths) for one in served]
            return ServedDtypes(Emitted(text, module, emit, tried), [m for one in served for m in one.modes],
                                certificates, times, [*notes, *_said(served, bool(times))], served)
        notes += [f"There are no kernels for {dtype}: {why}" for dtype, why in failures.items()]
        served = [one for one in served if one.dtype not in failures]
    return notes


def _of_dtype(problem: Problem, dtype: str, target: str, device: Device, settings: Settings, stages: Stages
              ) -> tuple[OfDtype, dict[str, Any], list[str]]:
    """What serves a further type, with times and notes: captured, planned, built, tuned and certified by itself."""
    other = converted(problem, dtype)
    example, truths = other.make_inputs(settings.seed), Truths(problem.device)
    own = replace(stages, budget=budget_of(settings.effort, settings.budget, baselines=settings.baselines))
    own.progress.left = own.budget.until_end
    own.say(f"kernels for {dtype}")
    modes, notes = understand(other, example, device, settings, own, predict=not is_here(target))
    modes = [replace(mode, graph=graphs_wanted(settings, target)) for mode in modes]
    timings: dict[str, Any] = {}
    if is_here(target):
        _, modes, _, _, timings = select(other, modes, example, target, device, settings, own, truths=truths)
    else:
        modes, _, _ = written(other, modes, example, target, device)
        modes, _, found = select_without_device(other, modes, example, target, device, settings, own)
        notes += found
    named = tuple(replace(m, name=f"{dtype}_{m.name}", dtype=dtype) for m in modes)
    return OfDtype(dtype, other, named, example, truths), {f"{dtype}_{name}": t for name, t in timings.items()}, notes


def _emitting(served: Sequence[OfDtype], target: str, device: Device) -> Callable[[Sequence[Library]], str]:
    """How the text for all types is made, with libraries of its kernels."""
    first, modes = served[0], [m for one in served for m in one.modes]
    examples = {one.dtype: one.example for one in served}
    return lambda libraries: emitted_text(first.problem, modes, first.example, target, device, libraries,
                                          examples=examples)[0]


def _file_of(served: Sequence[OfDtype], emit: Callable[[Sequence[Library]], str], target: str, stages: Stages
             ) -> tuple[str, ModuleType]:
    """The text for all types, and the module that it is. Raises what building raises."""
    first = served[0]
    with stages.stage("build", f"one file for {' and '.join(one.dtype for one in served)}"):
        text = emit(())
        if is_here(target):
            with without_device():
                emitted = load_text(text, first.problem.name)
        else:
            kernels = kernels_of(text)
            if find_cuda_compiler() is not None and (messages := compile_cuda(kernels)):
                raise BuildFailed(f"nvcc refused the kernels: {messages.splitlines()[0]}")
            emitted = load_emulated(text, kernels, first.problem.name)
        share_tables(emitted, first.problem)
    return text, emitted


def _certified(served: Sequence[OfDtype], emitted: ModuleType, settings: Settings, stages: Stages
               ) -> tuple[dict[str, Certificate], dict[str, str]]:
    """The certificates by mode, and what failed in which type."""
    certificates: dict[str, Certificate] = {}
    failures: dict[str, str] = {}
    for one in served:
        first = {m.name for m in distinct([m for m in one.modes if m.runs])}
        budget = budget_of(settings.effort, settings.budget, baselines="none")
        for mode in one.modes:
            candidate = as_called(mode, candidate_of(emitted, one.problem, mode, settings))
            if mode.runs and (reason := misfit(candidate, one.example)):
                failures[one.dtype] = f"{words_of(mode.name)} mode: {reason}"
                break
            found = certificate_of(one.problem, mode, emitted, settings, stages, one.truths, budget.share("verify"),
                                   brief=mode.name not in first, begun=None)
            if not found.passed:
                failures[one.dtype] = f"{words_of(mode.name)} mode: {found.sentence()}"
                break
            certificates[mode.name] = found
    return certificates, failures


def _said(served: Sequence[OfDtype], timed: bool) -> list[str]:
    """What is served, in sentences."""
    types = [one.dtype for one in served]
    idle = [one.dtype for one in served if not any(m.runs for m in one.modes)]
    said = [f"The file serves {', '.join(types[:-1])} and {types[-1]}, by the type of a call's tensors, with one "
            "class."]
    said += [f"No kernel of ours pays for {dtype}: such calls run the original computation." for dtype in idle]
    return said + ["Times are those of files for one type each, of which this one was made."] * timed
