"""BUILD for others: the file of a finished program with its kernels compiled in it, each library tried if it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from kernelwright.build.embedding import compiled_for
from kernelwright.build.library import opened, runs_here
from kernelwright.build.module import carry, kernels_of, load_text
from kernelwright.codegen.generate import TARGETS, is_here
from kernelwright.emit.embedded import Library
from kernelwright.failures import is_ours, told
from kernelwright.modes import ModeProgram
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages, emitted_text, share_tables
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.truths import Truths
from kernelwright.verified import wrong_with

NOTHING = "The file is the original computation: there are no kernels that it could hold compiled."


def with_libraries(problem: Problem, modes: list[ModeProgram], example: list[Any], target: str, device: Device,
                   settings: Settings, stages: Stages, text: str, module: nn.Module | None, names: Sequence[str],
                   truths: Truths) -> tuple[str, list[str]]:
    """The text of a file with its kernels compiled in it, for what ``names`` says, and sentences on what it holds.

    Each library that this machine can run is tried as the file was, with the trials that tell most; what fails is left
    out. module: the file's, whose copies carry the new text from now on. truths: what is known of the model.
    """
    source = kernels_of(text)
    if not source:
        return text, [NOTHING]
    try:
        with stages.stage("build", "libraries for other machines"):
            libraries, notes = compiled_for(source, names, TARGETS[target])
        kept, untried = list[Library](), list[str]()
        for library in libraries:
            if not is_here(target) or not runs_here(library):
                untried.append(library.name)
            elif wrong := _wrong(problem, modes, text, library, settings, stages, truths):
                notes.append(f"The library for {library.name} is left out of the file: {wrong}")
                continue
            kept.append(library)
        held, _ = emitted_text(problem, modes, example, target, device, kept)
        if kernels_of(held) != source:
            raise AssertionError("the kernels in the file are not those that were compiled for it")
    except Exception as error:  # the file is there without them
        if not is_ours(error) and not is_out_of_memory(error):
            raise
        return text, [f"The file does not hold its kernels compiled: {told(error)}."]
    if not kept:
        return text, ["The file holds no compiled kernels.", *notes]
    if untried:
        notes.append(f"This machine can't run the library for {' and '.join(untried)}: it is compiled, and not tried.")
    if module is not None:
        carry(module, held, problem.name)
    size = sum(len(library.packed) for library in kept)
    machines = " and ".join(library.name for library in kept)
    said = f"The file holds its kernels compiled for {machines} ({size:,} bytes): it needs no compiler there."
    return held, [said, *notes]


def _wrong(problem: Problem, modes: list[ModeProgram], text: str, library: Library, settings: Settings, stages: Stages,
           truths: Truths) -> str:
    """What is wrong with a file that runs a library; "" where it passes its trials."""
    emitted = load_text(text, problem.name)
    share_tables(emitted, problem)
    vars(emitted)["_kernelwright_library"] = opened(library, kernels_of(text))
    return wrong_with(problem, modes, f"{text}{library.name}", emitted, settings, stages, truths)
