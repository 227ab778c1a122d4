"""What all ways of a run share: our own file, candidates as files, and the judge's documents, each made once."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.errors import KernelwrightError
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress
from kernelwright.propose.analysis import Analysis, analyse
from kernelwright.propose.answers import COMPLETE, CUT_OFF, Answer
from kernelwright.propose.assembly import WANTED, parsed
from kernelwright.propose.endpoint import Asked, Endpoint
from kernelwright.propose.fences import take_apart
from kernelwright.propose.records import Candidate
from kernelwright.propose.regions import exchanged, region_answers, regions_of, shown
from kernelwright.propose.settings import ProposeSettings
from kernelwright.propose.standing import passed, speed
from kernelwright.propose.store import Store
from kernelwright.settings import Settings

OURS_FILE = "ours.py"
#: The candidate that has the best text of each region.
MIXTURE = "mixture"
#: Right candidates that are held against our file, side by side, at the end.
FINALISTS = 5


def judge_document(path: Path, files: Sequence[Path], settings: JudgeSettings, progress: Progress) -> dict[str, Any]:
    """The judge's document on files."""
    from kernelwright.judge.run import judge

    return judge(path, files, settings, progress).to_json()


def optimized(path: Path, settings: Settings, progress: Progress) -> None:
    """Write our own file to the settings' output."""
    from kernelwright.pipeline import optimize

    optimize(path, settings=settings, progress=progress)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a run calls that takes long: in tests others stand here."""

    analyse: Callable[[Path, Settings, Progress], Analysis] = analyse
    endpoint: Callable[..., Asked] = Endpoint
    judge: Callable[[Path, Sequence[Path], JudgeSettings, Progress], dict[str, Any]] = judge_document
    optimize: Callable[[Path, Settings, Progress], None] = optimized


@dataclass(slots=True)
class Session:
    """One run on its way. ``candidates`` are all so far, by name; ``documents`` the judge's, by their labels."""

    path: Path
    settings: ProposeSettings
    store: Store
    progress: Progress
    tools: Tools
    candidates: dict[str, Candidate] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ours_text: str = ""
    _programs: dict[str, str] = field(default_factory=dict)

    def own_file(self) -> Path | None:
        """Our own file, made where it is not there; None where there is none to make, with a note that says why."""
        path = self.store.folder / OURS_FILE
        if not any(self.store.of("ours")):
            self.progress.say("our own file")
            try:
                self.tools.optimize(self.path, self.settings.own_settings(path), self.progress)
                self.store.add("ours", made=True, why="")
            except KernelwrightError as error:
                self.store.add("ours", made=False, why=str(error))
            finally:
                self.progress.left = None  # the budget was that of our file
        made = next(self.store.of("ours"))
        if not made["made"]:
            self.notes.append(f"There is no file of kernelwright's own: {made['why']}")
        self.ours_text = self.store.read(OURS_FILE) if made["made"] else ""
        return path if made["made"] else None

    def admit(self, name: str, origin: str, answer: Answer, **fields: Any) -> Candidate:
        """An answer as a candidate: its file is written, and a program that was there before is told as such. One
        without ModelNew that defines kernels of our file is our file with these exchanged."""
        text, form, notes, regions = answer.candidate, answer.form, answer.notes, ()
        if self.ours_text and not re.search(rf"\b{WANTED}\b", text):
            texts = region_answers(take_apart(answer.text).blocks, regions_of(self.ours_text))
            whole = exchanged(self.ours_text, texts) if texts else None
            if whole is not None:
                text, form, regions = whole, CUT_OFF if answer.form == CUT_OFF else COMPLETE, tuple(texts)
                notes = (*notes, f"kernelwright's own file with {' and '.join(regions)} exchanged.")
        return self._admitted(name, origin, text, form, notes, regions, **fields)

    def mixture(self) -> str | None:
        """The name of a candidate that has of each region the fastest right text, faster than our file's; None where
        there are not two such regions. It is made once."""
        ours = self.ours_verdict()
        limit = speed(ours) if ours is not None else None
        best: dict[str, Candidate] = {}
        for candidate in self.candidates.values():
            own = speed(candidate.verdict) if candidate.verdict and passed(candidate.verdict) else None
            if len(candidate.regions) == 1 and not candidate.same_as and own is not None and own > (limit or 0.0):
                name = candidate.regions[0]
                if name not in best or own > (speed(best[name].verdict) or 0.0):
                    best[name] = candidate
        if len(best) < 2 or MIXTURE in self.candidates:
            return None
        whole = exchanged(self.ours_text, {n: shown(self.store.read(c.file), [n]) for n, c in best.items()})
        if whole is None:
            return None
        parents = tuple(c.name for c in best.values())
        made = self._admitted(MIXTURE, f"the kernels of {' and '.join(parents)}", whole, COMPLETE, (
            f"kernelwright's own file with {' and '.join(best)} exchanged.",), tuple(best), parents=parents)
        return None if made.same_as else MIXTURE

    def ours_verdict(self) -> dict[str, Any] | None:
        """The last verdict on our file."""
        documents = [d for d in self.documents.values() if self.ours_text]
        return documents[-1]["candidates"][0] if documents else None

    def _admitted(self, name: str, origin: str, text: str, form: str, notes: tuple[str, ...], regions: tuple[str, ...],
                  **fields: Any) -> Candidate:
        file = f"candidates/{re.sub(r'[^A-Za-z0-9_]+', '_', name).strip('_')[:80] or 'answer'}.py"
        taken = {c.file for c in self.candidates.values()}
        if file in taken:
            file = file.removesuffix(".py") + f"_{len(self.candidates)}.py"
        self.store.put(file, text)
        program = program_of(text)
        same = self._programs.setdefault(program, name) if program else name
        candidate = Candidate(name, file, origin, form, notes, "" if same == name else same, regions, **fields)
        self.candidates[name] = candidate
        return candidate

    def judge(self, label: str, names: Sequence[str], ours: Path | None) -> dict[str, Any]:
        """The judge's document on our file, where there is one, and on candidates by their names, in this order."""
        file = f"verdicts/{label}.json"
        done = next(self.store.of("judged", label=label, names=list(names)), None)
        if done is not None:
            document = json.loads(self.store.read(file))
        else:
            files = [*([ours] if ours else []), *(self.store.folder / self.candidates[n].file for n in names)]
            run = sum(1 for _ in self.store.of("judged"))
            document = self.tools.judge(self.path, files, self.settings.judge_settings(run), self.progress)
            self.store.put_json(file, document)
            self.store.add("judged", label=label, names=list(names), ours=ours is not None, seed=document["seed"],
                           seconds=document["seconds"])
        self.documents[label] = document
        verdicts = document["candidates"][1 if ours else 0:]
        for name, verdict in zip(names, verdicts, strict=True):
            self.candidates[name] = self.candidates[name].judged(verdict)
        for name, candidate in list(self.candidates.items()):
            if candidate.same_as and not candidate.verdict and self.candidates[candidate.same_as].verdict:
                self.candidates[name] = candidate.judged(self.candidates[candidate.same_as].verdict)
        return document

    def finalists(self) -> list[str]:
        """The right candidates that took least time, in the order of their names."""
        right = [n for n, c in self.candidates.items() if c.verdict and passed(c.verdict) and not c.same_as]
        best = sorted(right, key=lambda n: -(speed(self.candidates[n].verdict) or 0.0))[:FINALISTS]
        return [n for n in self.candidates if n in best]


def program_of(text: str) -> str:
    """What is equal for texts that are one program, whatever their comments and blanks; "" for no text."""
    tree = parsed(text)
    return text.strip() if tree is None else ast.dump(tree) if tree.body else ""
