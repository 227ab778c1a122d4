"""BUILD for others: the file of a finished program with its kernels compiled in it, each library tried if it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from kernelwright.programs import Stages, share_tables
from kernelwright.settings import Settings
from kernelwright.truths import Truths
from kernelwright.verified import wrong_with

NOTHING = "The file is the original computation: there are no kernels that it could hold compiled."


@dataclass(frozen=True, slots=True)
class Tried:
    """What a library is tried with: modes with a problem's inputs, such as of one size or type, and what is known of
    the model."""

    problem: Problem
    modes: list[ModeProgram]
    truths: Truths


@dataclass(frozen=True, slots=True)
class Emitted:
    """A file: its text, the model, how its text is made with libraries of its very kernels, and what these are to be
    tried with, the example first."""

    text: str
    module: nn.Module | None
    emit: Callable[[Sequence[Library]], str]
    tried: Sequence[Tried]


def with_libraries(file: Emitted, target: str, settings: Settings, stages: Stages, names: Sequence[str]
                   ) -> tuple[str, list[str]]:
    """The text of a file with its kernels compiled in it, for what ``names`` says, and sentences on what it holds.

    Each library that this machine can run is tried as the file was, with the trials that tell most; what fails is left
    out. Copies of the file's model carry the new text from now on.
    """
    text = file.text
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
            elif wrong := _wrong(file, library, settings, stages):
                notes.append(f"The library for {library.name} is left out of the file: {wrong}")
                continue
            kept.append(library)
        held = file.emit(kept)
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
    if file.module is not None:
        carry(file.module, held, file.tried[0].problem.name)
    size = sum(len(library.packed) for library in kept)
    machines = " and ".join(library.name for library in kept)
    said = f"The file holds its kernels compiled for {machines} ({size:,} bytes): it needs no compiler there."
    return held, [said, *notes]


def _wrong(file: Emitted, library: Library, settings: Settings, stages: Stages) -> str:
    """What is wrong with a file that runs a library; "" where it passes its trials."""
    first = file.tried[0].problem
    emitted = load_text(file.text, first.name)
    share_tables(emitted, first)
    vars(emitted)["_kernelwright_library"] = opened(library, kernels_of(file.text))
    found = (wrong_with(one.problem, one.modes, f"{file.text}{library.name}{number}", emitted, settings, stages,
                        one.truths) for number, one in enumerate(file.tried))
    return next(filter(None, found), "")
