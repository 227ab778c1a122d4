"""Prompts that ask for repairs: what ``kernelwright judge --prompt`` prints of candidates that are not right.

They are those of a run of `propose` that has such a candidate mended, without what is known of the model's cost: its
file, the candidate with the findings, and what an answer looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernelwright.judge.records import CandidateResult, JudgeResult
from kernelwright.judge.report.text import clean, short_names
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.propose.analysis import Analysis, text_alone
from kernelwright.propose.answers import COMPLETE
from kernelwright.propose.prompt import MEND, Message, ask
from kernelwright.propose.records import Candidate
from kernelwright.report import units
from kernelwright.settings import Settings

#: Families of verdicts on candidates that somebody could mend.
_MENDABLE = ("BUILD", "CRASH", "WRONG", "CHEAT")
_BAR = "=" * 8


def with_prompts(result: JudgeResult, path: Path, settings: JudgeSettings) -> JudgeResult:
    """``result`` with a prompt for each candidate that is not right and could be mended. ``path``: the model's file.
    Raises its coded errors."""
    if result.unfit or not any(map(is_mendable, result.candidates)):
        return result
    known = text_alone(path, Settings(target=settings.target, tiny=settings.tiny, model=settings.model))
    names = short_names([candidate.file for candidate in result.candidates])
    return replace(result, candidates=tuple(
        replace(c, prompt=as_text(repair(known, c, names[c.file]))) if is_mendable(c) else c
        for c in result.candidates))


def is_mendable(candidate: CandidateResult) -> bool:
    """Whether a verdict is about the candidate, and it is not right."""
    return VERDICTS[candidate.verdict].family in _MENDABLE


def repair(known: Analysis, candidate: CandidateResult, name: str) -> list[Message]:
    """The messages that ask for a mended file."""
    text = Path(candidate.file).read_text(encoding="utf-8-sig", errors="replace")
    parent = Candidate(name, candidate.file, candidate.file, COMPLETE, verdict=candidate.to_json())
    return ask(known, MEND, [(parent, text)])


def as_text(messages: Sequence[Message]) -> str:
    """Messages one after another, for whoever has one field to paste them into."""
    return "\n\n".join(message["content"] for message in messages) + "\n"


def render_prompts(result: JudgeResult) -> str:
    """The prompts of a result as they are printed: one by itself, several each under a line with its file."""
    asked = [c for c in result.candidates if c.prompt]
    if not asked:
        count = units.counted(len(result.candidates), "candidate")
        return f"Nothing to mend: of {count} none is wrong in a way that the judge can tell."
    if len(asked) == 1:
        return asked[0].prompt
    return "\n".join(f"{_BAR} {clean(c.file)}: {c.verdict} {_BAR}\n\n{c.prompt}" for c in asked)
