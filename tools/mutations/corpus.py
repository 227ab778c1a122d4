"""The corpus: candidates with one fault each, chosen by a seed, without equivalent mutants."""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernelwright.problem import Problem
from kernelwright.problem.load import load_problem
from mutations import conduct, functions, native, operands, parts
from mutations.bases import BASES, Base
from mutations.fault import Fault
from mutations.observe import Raises, differs, module_of

FAULTS: tuple[Fault, ...] = (*parts.FAULTS, *operands.FAULTS, *functions.FAULTS, *conduct.FAULTS)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One candidate: a base with a fault in its ``place``-th fitting place."""

    fault: Fault
    base: Base
    place: int
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        """A file name without its ending."""
        words = self.fault.name.lower().replace(" ", "_").replace("-", "")
        return f"{words}__{self.base.name}_{self.place}"


@dataclass(slots=True)
class Left:
    """What was left out of the corpus, by reason."""

    equivalent: list[str] = field(default_factory=list)
    raising: list[str] = field(default_factory=list)


class Texts:
    """Texts, problems and modules of the bases; files go to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._problems: dict[str, Problem] = {}
        self._modules: dict[str, types.ModuleType] = {}

    def problem_path(self, base: Base) -> Path:
        """The file of the base's problem, written if it is not there."""
        path = self.folder / "problems" / f"{base.name}.py"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(base.problem_text(), encoding="utf-8")
        return path

    def text(self, base: Base) -> str:
        """The base's own text."""
        return base.text(self.folder / "emitted")

    def differs(self, mutant: Mutant) -> bool:
        """See `mutations.observe.differs`."""
        base = mutant.base
        if base.name not in self._problems:
            self._problems[base.name] = load_problem(self.problem_path(base), device=torch.device("cpu"), tiny=True)
            self._modules[base.name] = module_of(self.text(base), base.name)
        return differs(self._problems[base.name], self._modules[base.name], module_of(mutant.text, mutant.name))


def candidates(texts: Texts, faults: Sequence[Fault], seed: int, bases: Sequence[Base] = BASES
               ) -> Iterator[tuple[Fault, Iterator[Mutant]]]:
    """For each fault its mutants in a random order that depends on the seed alone: one of each base in turn."""
    for fault in faults:
        drawn = random.Random(f"{seed} {fault.language} {fault.name}")
        found: list[list[Mutant]] = []
        for base in bases:
            if base.emitted == (fault.language == "cpp"):
                own = list(dict.fromkeys(fault.apply(texts.text(base))))
                places = [Mutant(fault, base, place, text) for place, text in enumerate(own)]
                drawn.shuffle(places)
                found.append(places)
        drawn.shuffle(found)
        longest = max((len(places) for places in found), default=0)
        yield fault, (places[turn] for turn in range(longest) for places in found if turn < len(places))


def collect(texts: Texts, seed: int, each: int, each_native: int, only: Sequence[str] = ()
            ) -> tuple[list[Mutant], Left]:
    """Up to ``each`` mutants of every fault in Python, ``each_native`` of every fault in C++, that differ from their
    bases, and what was left out. ``only``: names of the faults to take; none: all."""
    chosen: list[Mutant] = []
    left = Left()
    faults = [f for f in (*FAULTS, *native.FAULTS) if not only or f.name in only]
    for fault, mutants in candidates(texts, faults, seed):
        kept = 0
        for mutant in mutants:
            if kept == (each_native if fault.language == "cpp" else each):
                break
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wanted = texts.differs(mutant)
            except (Raises, SyntaxError):
                left.raising.append(mutant.name)
                continue
            if wanted:
                chosen.append(mutant)
                kept += 1
            else:
                left.equivalent.append(mutant.name)
    return chosen, left
