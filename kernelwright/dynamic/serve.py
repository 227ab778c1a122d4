"""From a file for the example's sizes to one that serves others: made, built, and certified at several sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType, ModuleType
from typing import Any

from kernelwright.build.emulation import load_emulated
from kernelwright.build.module import compile_cuda, find_cuda_compiler, load_text
from kernelwright.codegen.generate import is_here
from kernelwright.deploy.embedded import Emitted, Tried
from kernelwright.device_lock import without_device
from kernelwright.dynamic.conditions import lookup
from kernelwright.dynamic.formulas import Sizes
from kernelwright.dynamic.make import Made, made_of_sizes
from kernelwright.dynamic.records import Differs
from kernelwright.dynamic.replan import in_words
from kernelwright.dynamic.sizes import Size, of_sizes
from kernelwright.emit.embedded import Library
from kernelwright.emit.file import Sized
from kernelwright.failures import is_ours, told
from kernelwright.modes import ModeProgram, as_called, distinct
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages, emitted_text, new_model, share_tables
from kernelwright.records import words_of
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.truths import Truths
from kernelwright.verified import candidate_of, certificate_of, misfit
from kernelwright.verify.certificate import Certificate

#: Sizes at which each program is certified beside the example's: the ends of all that is served and of each variant of
#: a text, and some that are drawn.
MOST_ENDS, DRAWN = 14, 2
#: And by emulation, which is slow: the least of these.
_EMULATED = 3

def _advice(sizes: Sequence[Size]) -> list[str]:
    """What may help where no other size is served."""
    ones = [size.name.removeprefix("size_") for size in sizes if size.example == 1 < size.high]
    return [f"In the example {' and '.join(ones)} is 1, and an axis of one element is planned as if it were none: an "
            "example with more elements there may give kernels for all."] if ones else []


#: A file, the certificates by mode, and sentences for the report.
Served = tuple[Emitted, dict[str, Certificate], list[str]]


def serving_sizes(problem: Problem, modes: Sequence[ModeProgram], sizes: Sequence[Size], example: list[Any],
                  target: str, device: Device, settings: Settings, stages: Stages,
                  typed: Mapping[str, tuple[Problem, list[Any]]] = MappingProxyType({})) -> Served | list[str]:
    """The file of these modes for several sizes; or why there is none, and the file stays one for the example's.

    typed: by floating-point type, the model's own first, the problem as converted to it and its example inputs, where
    the modes are of several types.

    A mode whose certificate fails at some sizes serves the example's alone. Without the target's device its kernels are
    tried by emulation at the least sizes, and compiled where its compiler is.
    """
    emulated_here = not is_here(target)
    given_up: dict[str, str] = {}
    asked = ", ".join(settings.dynamic)
    problems = {dtype: own for dtype, (own, _) in typed.items()}
    examples = {dtype: own for dtype, (_, own) in typed.items()}

    def emit(sized: Sized, libraries: Sequence[Library] = ()) -> str:
        return emitted_text(problem, modes, example, target, device, libraries, sized=sized, examples=examples)[0]

    while True:
        try:
            made = made_of_sizes(problem, modes, sizes, target, device, settings, stages, given_up, problems)
            with stages.stage("build", "the file for several sizes"):
                text = emit(made.sized)
                if not emulated_here:
                    with without_device():
                        emitted = load_text(text, problem.name)
                else:
                    if find_cuda_compiler() is not None and (messages := compile_cuda(made.sized.kernels.text)):
                        raise Differs(f"nvcc refused the generated kernels: {messages.splitlines()[0]}")
                    emitted = load_emulated(text, made.sized.kernels.text, problem.name)
                share_tables(emitted, problem)
            certificates, failures, points = _certified(problem, modes, sizes, made, emitted, settings, stages,
                                                        problems, emulated=emulated_here)
        except Differs as differs:
            why = str(differs).rstrip(".")
            return [f"The file serves the example's sizes alone, not {asked}: {why}.", *_advice(sizes)]
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            return [f"The file serves the example's sizes alone, not {asked}: {told(error)}."]
        if not failures:
            notes = [*made.notes, *_said(sizes, made, points, emulated=emulated_here)]
            module = None if emulated_here else new_model(emitted, problem, settings.seed)
            return Emitted(text, module, partial(emit, made.sized),
                           _to_try(problem, modes, sizes, points, problems)), certificates, notes
        given_up |= failures


def _to_try(problem: Problem, modes: Sequence[ModeProgram], sizes: Sequence[Size],
            points: Mapping[str, Sequence[Sizes]], problems: Mapping[str, Problem]) -> list[Tried]:
    """What libraries are tried with: the example's sizes, and the other end of what each mode serves."""
    others = [(m, points[m.name][1]) for m in modes if len(points.get(m.name, ())) > 1]
    same = [(problems.get(dtype, problem), [m for m in modes if m.dtype == dtype])
            for dtype in dict.fromkeys(m.dtype for m in modes)]
    return [*(Tried(own, here, Truths(own.device)) for own, here in same),
            *(Tried(of_sizes(problems.get(m.dtype, problem), sizes, point), [m], Truths(problem.device))
              for m, point in others)]


def _said(sizes: Sequence[Size], made: Made, points: Mapping[str, Sequence[Sizes]], *, emulated: bool) -> list[str]:
    """What is served, in sentences."""
    ranges = ", ".join(f"{size.name.removeprefix('size_')} from {size.low} to {size.high}" for size in sizes)
    result = []
    for name, own in made.served.items():
        if len(own) > 1:
            tried = "; ".join(in_words(sizes, point) for point in points[name])
            result.append(f"{words_of(name).capitalize()} mode serves sizes {ranges}, with one set of weights; "
                          f"{'tried by emulation' if emulated else 'certified'} at {tried}.")
    return result


def _certified(problem: Problem, modes: Sequence[ModeProgram], sizes: Sequence[Size], made: Made, emitted: ModuleType,
               settings: Settings, stages: Stages, problems: Mapping[str, Problem], *, emulated: bool
               ) -> tuple[dict[str, Certificate], dict[str, str], dict[str, list[Sizes]]]:
    """The certificates at the example's sizes by mode, what failed at which sizes, and where each mode was tried."""
    certificates: dict[str, Certificate] = {}
    failures: dict[str, str] = {}
    tried: dict[str, list[Sizes]] = {}
    example = tuple(size.example for size in sizes)
    by_type = {dtype: Truths(problem.device) for dtype in (*problems, "")}
    first = {m.name for m in distinct([m for m in modes if m.runs])}
    for mode in modes:
        if not mode.runs and emulated:
            continue
        own, truths = problems.get(mode.dtype, problem), by_type[mode.dtype]
        if not mode.runs:
            certificates[mode.name] = certificate_of(own, mode, emitted, settings, stages, truths, 1.0, brief=True,
                                                     begun=None)
            continue
        ends = _ends(made, mode.name, settings.seed)
        points = [example, *(p for p in (ends if mode.name in first else ends[:2]) if p != example)]
        if emulated:
            points = sorted(points, key=prod)[:_EMULATED if mode.name in first else 1]
        tried[mode.name] = points
        seconds = stages.budget.share("verify") / max(1, len(points))
        for point in points:
            other = of_sizes(own, sizes, point)
            inputs = other.make_inputs(settings.seed)
            candidate = as_called(mode, candidate_of(emitted, other, mode, settings))
            if reason := misfit(candidate, inputs):
                failures[mode.name] = f"at {in_words(sizes, point)} {reason}"
                break
            found = certificate_of(other, mode, emitted, settings, stages,
                                   truths if point == example else Truths(problem.device), seconds,
                                   brief=point != example, begun=None)
            if not found.passed:
                failures[mode.name] = f"at {in_words(sizes, point)} {found.sentence()}"
                break
            if point == example and not emulated:
                certificates[mode.name] = found
    return certificates, failures, tried


def _ends(made: Made, mode: str, seed: int) -> list[Sizes]:
    """Where a mode is tried beside the example: the lowest and highest sizes that are served, some drawn ones, and the
    ends of each variant of a text."""
    served = list(made.served[mode])
    generator = random.Random(seed)
    found = [served[0], served[-1], *(made.unseen if len(served) > 1 else ())]
    found += [generator.choice(served) for _ in range(DRAWN)]
    for own, tree in made.kernels.values():
        for number, variant in enumerate(own):
            here = [p for p in variant.points if p in served and lookup(tree, p) == number]
            found += [here[0], here[-1]] if here else []
    return list(dict.fromkeys(found))[:MOST_ENDS]

