"""The records of a run: candidates, rounds, and the result, with its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelwright.propose.critique import Critique
from kernelwright.propose.standing import passed, speed
from kernelwright.verify.plain import plain

SCHEMA = 1
#: Exit statuses: a file is written; none is; the judge could not judge.
WRITTEN, NOT_WRITTEN, NOT_JUDGED = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate. ``name``: as it is called. ``file``: its text, in the run's folder. ``origin``: the answer's file,
    or the call. ``form``: what reading the answer showed. ``notes``: how the file was put together. ``same_as``: the
    name of an earlier candidate with the same program, "" where there is none. ``regions``: the kernels of our file
    that it exchanges; none of a candidate that is a whole file. ``round``: from 1, 0 for texts that
    existed. ``parents``: names of the candidates that were shown when it was asked for. ``verdict``: its part of the
    judge's document."""

    name: str
    file: str
    origin: str
    form: str
    notes: tuple[str, ...] = ()
    same_as: str = ""
    regions: tuple[str, ...] = ()
    round: int = 0
    island: int = 0
    parents: tuple[str, ...] = ()
    verdict: dict[str, Any] = field(default_factory=dict)

    def judged(self, verdict: Mapping[str, Any]) -> Candidate:
        """The candidate with its verdict."""
        return replace(self, verdict=dict(verdict))


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has cost: ``calls`` of the endpoint, tokens of prompts and answers, seconds of asking and judging,
    and money where prices are known. ``estimated``: tokens that the endpoint did not count, at most so many."""

    calls: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    money: float | None = None
    estimated: int = 0
    stopped: str = ""
    """Why nothing more was asked, "" where all rounds ran."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round in figures: candidates, how many of them were right, and the best speed-up over eager up to its end."""

    number: int
    candidates: int
    right: int
    best: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class ProposeResult:
    """What a run gives. ``written``: the file, or None where there is none to give. ``chosen``: the candidate's name,
    or "ours". ``why``: in one sentence. ``ours``: the verdict on our own file, or null. ``against``: why a candidate
    that passed was not taken, by its name. ``over_ours``: our time over the chosen candidate's. ``folder``: where
    everything is. ``environment``: the device and the versions."""

    problem: str
    path: str
    written: Path | None
    chosen: str
    why: str
    ours: dict[str, Any] | None
    candidates: tuple[Candidate, ...]
    against: dict[str, str]
    over_ours: dict[str, Any] | None
    critique: Critique
    rounds: tuple[Round, ...]
    spent: Spent
    folder: Path
    environment: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 where a file is written, 3 where the judge could say nothing, else 1."""
        verdicts = [c.verdict.get("verdict", "") for c in self.candidates]
        if verdicts and all(v.startswith("JUDGE") for v in verdicts):
            return NOT_JUDGED
        return WRITTEN if self.written is not None else NOT_WRITTEN

    def to_json(self) -> dict[str, Any]:
        """Return plain data. Certificates stand in the verdicts' files alone."""
        document: dict[str, Any] = {"schema": SCHEMA, **plain(self), "exit_status": self.exit_status}
        document["critique"] = self.critique.to_json()
        for verdict in (document["ours"], *(c["verdict"] for c in document["candidates"])):
            if verdict:
                verdict.pop("certificate", None)
        return document


def rounds_of(candidates: tuple[Candidate, ...], tokens: Mapping[int, int]) -> tuple[Round, ...]:
    """The learning curve: one entry a round."""
    found, best = [], None
    for number in sorted({c.round for c in candidates}):
        own = [c for c in candidates if c.round == number]
        right = [c for c in own if c.verdict and passed(c.verdict)]
        best = max([s for c in right if (s := speed(c.verdict)) is not None] + ([best] if best is not None else []),
                   default=None)
        found.append(Round(number, len(own), len(right), best, tokens.get(number, 0)))
    return tuple(found)
