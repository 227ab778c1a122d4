"""What the judge hands on: findings, one result per candidate, and the result of a run. Plain, frozen, JSON-ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from kernelwright.judge.verdicts import VERDICTS
from kernelwright.timing.statistics import Ratio, quantile
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.plain import plain
from kernelwright.verify.records import TrialPlan

#: Version of the JSON document; changes when a field changes its meaning or goes away.
SCHEMA = 2
#: Exit statuses: each candidate passed; one did not; of one the judge can say nothing.
PASSED, NOT_PASSED, NOT_JUDGED = 0, 1, 3
ERROR_UNIT = "rms of the error over rms of the float64 result, worst output of the trials that decide"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found about a candidate.

    ``kind`` is a short stable name with hyphens ("missing-bias", "unchecked-launch"); ``source`` says how it is known:
    "run" (seen in results), "build" (said by a compiler or the interpreter), "clock" (measured) or "read" (stands in
    the text; a hint, never a verdict alone). ``line`` counts from 1 in the candidate's file, ``text`` is that line.
    ``fix`` says what would mend it. ``evidence`` is plain data: index, expected, got, float64, share, factor, ...
    """

    kind: str
    sentence: str
    source: str = "run"
    fix: str = ""
    line: int | None = None
    text: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a candidate gets no time: a verdict of the closed list, with what was found."""

    verdict: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class CandidateTiming:
    """Times of a candidate that passed, in seconds. ``inner`` is the median by the clock beside the calls (device
    events on a GPU), ``outer`` the judge's own wall-clock slope over two batch lengths; ``seconds`` is what counts: the
    inner clock's where both agree, else the outer's. ``samples`` are the paired rounds of the clock that counts.
    ``speedup`` is eager over the candidate, interleaved, with its interval."""

    seconds: float
    interval: tuple[float, float]
    inner: float
    outer: float | None
    samples: tuple[float, ...]
    speedup: Ratio | None
    floor_seconds: float | None = None
    share_of_floor: float | None = None
    own_share: float | None = None
    """Share of the device's (on a CPU: the call's) time that is spent in the candidate's own kernels."""
    note: str = ""
    rounds: tuple[int, ...] = ()
    """Numbers of the rounds of ``samples``, counted over the whole run. Empty: 0, 1, 2, ..., all timed together."""
    graph: bool = False
    """Whether its calls launch a CUDA graph that it recorded before, as a profile of some calls shows."""
    sol_score: float | None = None
    """SOL-ExecBench's score with eager as its baseline and our limit; None where one of them is not known."""

    @property
    def by_round(self) -> dict[int, float]:
        """The sample of each round, by its number."""
        return dict(zip(self.rounds or range(len(self.samples)), self.samples))

    @property
    def samples_count(self) -> bool:
        """Whether ``samples`` are of the clock that counts: their median lies in the time's interval."""
        return bool(self.samples) and self.interval[0] <= quantile(self.samples, 0.5) <= self.interval[1]


@dataclass(frozen=True, slots=True)
class ByRules:
    """What a candidate is worth by the rules of another evaluator. ``right`` is None where that could not be tried;
    ``why`` says what is wrong, or why not, and is empty where it is right. ``passed`` of ``trials`` were right."""

    rules: str
    title: str
    right: bool | None
    why: str
    passed: int = 0
    trials: int = 0


@dataclass(frozen=True, slots=True)
class Alike:
    """A text that a candidate's is near to. ``share``: of the runs of tokens that they have in common, from 0 to 1;
    ``of``: candidate, problem (the model's file) or known. ``words`` stand between the two names."""

    file: str
    share: float
    of: str
    words: str


@dataclass(frozen=True, slots=True)
class TriedShape:
    """Whether a candidate is right for inputs of a shape: ``words`` say which."""

    words: str
    right: bool


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What a tool of compute-sanitizer (memcheck, racecheck, synccheck, initcheck) says of a candidate's kernels.

    ``outcome``: "clean"; "found"; "unproven", as it did not see the known fault that it is shown each time;
    "unfinished", as it did not see all calls; "not-run". ``words`` say what or why; ``seconds`` is wall time."""

    tool: str
    outcome: str
    words: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """The verdict on one file. ``reason`` is one sentence that a person, or a model asked to repair it, can act on;
    ``fix`` what would mend it. ``limits`` are the limits of OK-BUT. ``precision`` is float32, tf32 or 16-bit."""

    file: str
    verdict: str
    reason: str
    fix: str = ""
    findings: tuple[Finding, ...] = ()
    limits: tuple[str, ...] = ()
    certificate: Certificate | None = None
    timing: CandidateTiming | None = None
    precision: str | None = None
    allclose: bool | None = None
    """Whether the plain ``allclose`` with 1e-5 holds (:func:`plain_allclose`): for information, it decides nothing."""
    isolation: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by stage: build, check, diagnose, time."""
    rank: int | None = None
    """From 1; candidates that cannot be told apart share one. None where there is no time."""
    rank_class: str | None = None
    """Candidates are ranked within their class: own kernels or library-backed, and the precision."""
    untried: str = ""
    """What its diagnosis did not try because its time was over, in words; "" where it tried everything."""

    by_rules: tuple[ByRules, ...] = ()
    """What the rules of others say, where they were asked for."""
    prompt: str = ""
    """A prompt that asks for a repair, where one was asked for and the candidate is not right."""
    alike: tuple[Alike, ...] = ()
    """Texts that its own is near to, the nearest first."""
    shapes: tuple[TriedShape, ...] = ()
    """The shapes of inputs that one that passed was tried with: the problem's own first, then other batch sizes."""
    sanitizer: tuple[ToolRun, ...] = ()
    """What compute-sanitizer's tools say of its kernels, where they were asked: on a GPU."""

    @property
    def own_share(self) -> float | None:
        """Share of its time in its own kernels, where it was timed."""
        return self.timing.own_share if self.timing else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The worst relative error of the candidate and of eager; None where nothing could be compared."""
        found = self.certificate
        if found is None or not any(t.gates and t.comparison and t.comparison.outputs for t in found.trials):
            return None
        return {"candidate": found.candidate_error, "eager": found.eager_error, "unit": ERROR_UNIT}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        document = {name: plain(getattr(self, name)) for name in self.__dataclass_fields__
                    if name not in ("certificate", "timing")}
        document["error"] = plain(self.error)
        document["own_share"] = self.own_share
        document["timing"] = plain(self.timing) if self.timing else None
        document["certificate"] = self.certificate.to_json() if self.certificate else None
        return document


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """The result of a run: the problem's name and path, and one result per candidate in the order given.

    ``problem_profile``, ``selftest`` and ``environment`` are plain data. Of the first two ``words`` are shown;
    ``selftest["passed"]`` is false where the judge is unfit. ``environment`` has clocks and throttling while candidates
    were timed, with ``words`` where something is to be said. ``settings`` are those that bear on the result. ``seed``
    was unknown to the candidates and is published here, after the verdicts. ``seconds`` is the wall time of the run.
    """

    problem: str
    path: str
    candidates: tuple[CandidateResult, ...]
    problem_profile: dict[str, Any]
    selftest: dict[str, Any]
    isolation: str
    device: str
    versions: dict[str, str]
    environment: dict[str, Any]
    settings: dict[str, Any]
    seed: int
    seconds: float
    baseline: CandidateTiming | None = None
    """Eager's own time, in the rounds of the candidates."""
    schema: int = SCHEMA

    @property
    def ranking(self) -> dict[str, list[list[str]]]:
        """For each class the files by rank, best first; those that cannot be told apart stand together."""
        ranked = sorted((c.rank_class or "", c.rank, c.timing.seconds, c.file) for c in self.candidates
                        if c.rank is not None and c.timing is not None)
        classes: dict[str, dict[int, list[str]]] = {}
        for name, rank, _, file in ranked:
            classes.setdefault(name, {}).setdefault(rank, []).append(file)
        return {name: list(ranks.values()) for name, ranks in classes.items()}

    @property
    def unfit(self) -> bool:
        """Whether the judge failed its self-test, so that nothing of the run counts."""
        return not self.selftest.get("passed", True) or any(c.verdict == "JUDGE-UNFIT" for c in self.candidates)

    @property
    def exit_status(self) -> int:
        """3 where the judge is unfit or says nothing about a candidate (JUDGE-*), 1 where one did not pass, else 0."""
        verdicts = [VERDICTS[candidate.verdict] for candidate in self.candidates]
        if self.unfit or any(verdict.family == "JUDGE" for verdict in verdicts):
            return NOT_JUDGED
        return PASSED if all(verdict.passed for verdict in verdicts) else NOT_PASSED

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``json.dumps`` takes with ``allow_nan=False``. Times are in seconds."""
        return {
            "schema": self.schema,
            "problem": self.problem,
            "path": self.path,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "ranking": self.ranking,
            "baseline": plain(self.baseline),
            "problem_profile": plain(self.problem_profile),
            "selftest": plain(self.selftest),
            "isolation": self.isolation,
            "device": self.device,
            "versions": plain(self.versions),
            "environment": plain(self.environment),
            "settings": plain(self.settings),
            "seed": self.seed,
            "seconds": plain(self.seconds),
            "exit_status": self.exit_status,
        }


def plain_allclose(certificate: Certificate) -> bool | None:
    """Whether each float32 output on the problem's own inputs is within 1e-5 + 1e-5 |x| of float64, element by element.

    None without such an output. Holds for certificates made with the usual ``atol`` and ``rtol``, which are these.
    """
    own = [output for trial in certificate.trials if trial.comparison is not None
           and trial.plan == TrialPlan(trial.plan.seed) for output in trial.comparison.outputs
           if output.dtype == str(torch.float32) and (output.passed or output.reference_rms)]
    return all(o.units <= 1 and not o.misplaced_nonfinite for o in own) if own else None
