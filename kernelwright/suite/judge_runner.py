"""``kernelwright judge --set``: many problems' candidates on all devices, one result a candidate as soon as it stands.

The scheduler, the processes and the Ray runner are those of ``bench``. A job is a problem with some of its candidates,
whose process says each result when it has it; what is said is on disk before anything else happens. When a process
ends early, what it had not judged runs again: the candidate that it was at by itself, in case it was the reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from kernelwright.judge.records import NOT_JUDGED, NOT_PASSED, PASSED, CandidateResult
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.names import natural
from kernelwright.problem.memory import says_out_of_device_memory
from kernelwright.processors import processors
from kernelwright.progress import Progress, about_left, time_in_words
from kernelwright.report import units
from kernelwright.report.layout import Page
from kernelwright.settings import Settings
from kernelwright.suite.candidate_sets import Entry, find_entries, plain_name
from kernelwright.suite.devices import CORES_PER_WORKER, find_machine
from kernelwright.suite.jobs import Job
from kernelwright.suite.judge_worker import BEGUN, JUDGED
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.results import FILE, Lines
from kernelwright.suite.runner import runner_of
from kernelwright.verify.plain import plain

#: Version of a result's form; it changes when a field changes its meaning or goes away.
SCHEMA = 1
WORK = "kernelwright.suite.judge_worker:judge_candidates"
#: Candidates of one job, where there are enough: as many share a process, its self-test and what the model gave, which
#: together take about as long as a candidate or two.
LEAST_IN_A_JOB, MOST_IN_A_JOB = 4, 16
#: Jobs for each process that may run, so that the last ones end together.
JOBS_A_WORKER = 2
#: How often a candidate begins in a process that does not live to judge it.
MOST_ATTEMPTS = 3
#: A guard against a judge that hangs, for one candidate with all that belongs to it; candidates have limits of their
#: own, by stages.
LIMIT_SECONDS = 3600.0
#: Verdicts of which another run may be another: the judge's own doing, or the machine's.
PASSING = frozenset({"JUDGE-UNFIT", "JUDGE-BUSY", "JUDGE-ERROR"})
#: A verdict that may be due to what other processes use: it counts only where nothing else ran beside the candidate.
SHORT_OF_MEMORY = "CRASH-MEMORY"
#: Problems that the text lists one by one.
MOST_LISTED = 60


class Summary(TypedDict):
    """The last line of ``judge --set --json``; the lines before are records."""

    schema: int
    output: str
    """The folder of the results."""
    results: str
    """The file of records there."""
    candidates: int
    """How many the set has."""
    judged: int
    """How many were judged in this run; the others had results."""
    seconds: float
    """Wall time of this run."""
    exit_status: int
    """As of ``judge``."""
    verdicts: dict[str, int]
    """How many candidates have each verdict."""


class Judged(TypedDict):
    """What became of one candidate of a set: a line of the results. See ``docs/judge_sets.md``."""

    schema: int
    id: str
    """What tells it apart within the set."""
    key: str
    """Hash of all that the verdict holds for: texts, settings, machine and versions."""
    problem: str
    """The problem's name."""
    problem_sha256: str
    candidate_sha256: str
    verdict: str
    """A code of the list of ``docs/judge.md``."""
    result: CandidateResult
    """As in the document of ``judge --json``; ``rank`` holds among the candidates of the same ``job``."""
    error: dict[str, Any] | None
    """The coded error of the problem, or of the process that ended; else null."""
    job: str
    """Names the candidates that one process judged."""
    same_as: str | None
    """Id of the candidate of this set with the same texts, whose result this is."""
    attempts: int
    """How often it began."""
    seed: int
    """Of everything drawn."""
    settings: dict[str, Any]
    """All that bear on the result."""
    device: str
    versions: dict[str, str]
    judged: str
    """When: UTC, ISO 8601."""


@dataclass(frozen=True, slots=True)
class SetResult:
    """What became of a set: the record of each of its candidates, in its order. judged: how many were judged in this
    run; the others' results were there."""

    folder: Path
    records: tuple[Mapping[str, Any], ...]
    judged: int
    seconds: float

    @property
    def exit_status(self) -> int:
        """As of `JudgeResult`: 3 where the judge says nothing about a candidate, 1 where one did not pass, else 0."""
        verdicts = [VERDICTS[record["verdict"]] for record in self.records]
        if any(verdict.family == "JUDGE" for verdict in verdicts):
            return NOT_JUDGED
        return PASSED if all(verdict.passed for verdict in verdicts) else NOT_PASSED

    def as_json(self) -> Summary:
        """The summary as plain data; the records themselves stand in ``results.jsonl``."""
        return {"schema": SCHEMA, "output": str(self.folder), "results": FILE, "candidates": len(self.records),
                "judged": self.judged, "seconds": self.seconds, "exit_status": self.exit_status,
                "verdicts": dict(Counter(record["verdict"] for record in self.records))}


def judge_set(path: Path | str, settings: JudgeSettings, options: SuiteOptions, progress: Progress | None = None,
              told: Callable[[Mapping[str, Any]], None] = lambda record: None) -> SetResult:
    """Judge every candidate of the set at ``path`` (`find_entries`) that has no result yet, and keep the results.

    ``options`` say where: output, devices, workers, runner, filters, force. ``told`` gets each record (`Judged`) as
    soon as it is on disk, those that were there first. Raises the coded errors of `find_entries` and of `run_suite`;
    what goes wrong with a problem or a candidate is in its record.
    """
    progress = progress or Progress()
    began = time.monotonic()
    kept = {name: value for name, value in settings.as_json().items() if name != "device"}
    options = replace(options, judge=kept, work=WORK, limit=LIMIT_SECONDS, settings=Settings(
        target=settings.target, threads=settings.threads))
    entries = find_entries(Path(path), options.output / "texts", options.filters)
    run = runner_of(options)
    store = _Store(options.output, force=options.force)
    try:
        machine = find_machine(options)
        keys = {entry.id: entry.key(kept, machine) for entry in entries}
        driver = _Driver(entries, keys, kept, settings.seed or 0, store, progress, told,
                         together=options.workers != 1 or len(options.devices) > 1)
        if driver.found:
            progress.say(f"{driver.found} of {len(entries)} candidates have results already")
        if jobs := driver.jobs(_job_size(len(driver.missing), options)):
            run(jobs, options, driver.finished, progress, driver.part)
        records = tuple(store.records[keys[entry.id], entry.id] for entry in entries)
    finally:
        store.close()
    return SetResult(options.output, records, driver.judged, time.monotonic() - began)


def _job_size(candidates: int, options: SuiteOptions) -> int:
    """How many candidates a process gets: few enough that all processes have work, many enough to share what is made
    once."""
    workers = (options.workers or max(1, processors() // CORES_PER_WORKER)) * max(1, len(options.devices))
    return max(LEAST_IN_A_JOB, min(MOST_IN_A_JOB, candidates // (JOBS_A_WORKER * workers)))


class _Store(Lines):
    """The open results of one run. ``records`` holds the newest by key and id, ``by_key`` one for each key that
    stands."""

    def __init__(self, folder: Path, *, force: bool) -> None:
        super().__init__(folder, keep=True, force=force)
        self.records: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.by_key: dict[str, Mapping[str, Any]] = {}
        for line in () if force else self.before:
            try:
                record = json.loads(line)
                if record["schema"] == SCHEMA and record["verdict"] not in PASSING:
                    self._know(record)
            except (ValueError, KeyError, TypeError):  # a torn line, or one of something else
                continue

    def add(self, record: Judged) -> None:
        """Keep one record; on disk when this returns."""
        self.append(record)
        self._know(record)

    def _know(self, record: Mapping[str, Any]) -> None:
        self.records[record["key"], record["id"]] = record
        self.by_key[record["key"]] = record


@dataclass(slots=True)
class _Candidate:
    """One text to judge, and the entries that it is the candidate of, which have the same problem."""

    key: str
    entries: list[Entry]
    attempts: int = 0
    alone: bool = False
    """Whether nothing runs beside it any more, as there was too little memory."""


@dataclass(slots=True)
class _Driver:
    """Makes jobs of what has no result, takes what their processes say, and makes further jobs of what they leave."""

    entries: Sequence[Entry]
    keys: Mapping[str, str]
    settings: Mapping[str, Any]
    seed: int
    store: _Store
    progress: Progress
    told: Callable[[Mapping[str, Any]], None]
    together: bool = False
    """Whether candidates of several jobs are judged at once."""
    missing: dict[str, _Candidate] = field(default_factory=dict)
    """By key, what has no result yet."""
    found: int = 0
    judged: int = 0
    running: dict[str, list[str]] = field(default_factory=dict)
    """By job, the keys of its candidates."""
    at: dict[str, str] = field(default_factory=dict)
    """By job, the key of the candidate that began last."""
    short: set[str] = field(default_factory=set)
    """Keys of candidates that had too little memory beside others."""
    number: int = 0
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        for entry in self.entries:
            key = self.keys[entry.id]
            if (key, entry.id) in self.store.records:
                self.found += 1
                self.told(self.store.records[key, entry.id])
            elif key in self.store.by_key:
                self.found += 1
                self._keep({**self.store.by_key[key], **self._own(entry, self.store.by_key[key]["id"])})
            else:
                self.missing.setdefault(key, _Candidate(key, [])).entries.append(entry)

    def jobs(self, size: int) -> list[Job]:
        """Jobs of at most ``size`` candidates of one problem each."""
        problems: dict[tuple[Path, str], list[_Candidate]] = {}
        for candidate in self.missing.values():
            first = candidate.entries[0]
            problems.setdefault((first.problem_path, first.problem_sha256), []).append(candidate)
        return [self._job(some[at:at + size]) for some in problems.values() for at in range(0, len(some), size)]

    def _job(self, candidates: Sequence[_Candidate], alone: bool = False) -> Job:
        first = candidates[0].entries[0]
        self.number += 1
        name = f"{plain_name(first.problem)}.{self.number}"
        self.running[name] = [candidate.key for candidate in candidates]
        given = {"candidates": [{"key": c.key, "path": str(c.entries[0].candidate_path)} for c in candidates],
                 "seed": self.seed, **({"on_machine": 1} if alone else {})}
        return Job(name, first.problem, str(first.problem_path), first.problem_sha256,
                   first.problem_path.stat().st_size, given, alone)

    def part(self, job: str, told: Mapping[str, Any]) -> None:
        """Hear what a job's process says of one candidate."""
        key = told["key"]
        if key not in self.missing:  # its process was thought to be gone
            return
        if told["kind"] == BEGUN:
            self.at[job] = key
            self.missing[key].attempts += 1
        elif told["kind"] == JUDGED and self.together and not self.missing[key].alone \
                and told["result"]["verdict"] == SHORT_OF_MEMORY and not _of_device_alone(told):
            self.short.add(key)
        elif told["kind"] == JUDGED:
            self._close(key, job, told["result"], told["device"], told["versions"], None)

    def finished(self, record: Mapping[str, Any]) -> Iterable[Job]:
        """Take the end of a job; the jobs for what it has left."""
        name = record["problem"]
        left = [self.missing[key] for key in self.running.pop(name, ()) if key in self.missing]
        at = self.at.pop(name, None)
        jobs = self._left(record, [candidate for candidate in left if candidate.key not in self.short], at)
        for candidate in left:
            if candidate.key in self.short:
                self.short.remove(candidate.key)
                candidate.alone = True
                jobs.append(self._job([candidate], alone=True))
        return jobs

    def _left(self, record: Mapping[str, Any], left: Sequence[_Candidate], at: str | None) -> list[Job]:
        """Jobs for what a job's process has left that ended while it was at the candidate ``at``."""
        name, error = record["problem"], record["error"]
        if not left:
            return []
        if record["state"] == "error" or at is None:  # nothing of the candidates': the problem, or its profile
            attempts = max(candidate.attempts for candidate in left) + (at is None)
            if record["state"] == "error" or attempts >= MOST_ATTEMPTS:
                for candidate in left:
                    self._give_up(candidate, name, record)
                return []
            for candidate in left:
                candidate.attempts = attempts
            return [self._job(left, alone=self.together and _says_memory(record))]
        what = (error or {}).get("what", "it ended")
        self.progress.say(f"a process ended before it had judged {len(left)} candidates: {what}")
        # While times are taken it may have been any of those that began.
        suspects = [c for c in left if c.attempts and (c.key == at or record["stage"] == "time")]
        jobs = []
        for candidate in suspects:
            if candidate.attempts >= MOST_ATTEMPTS:
                self._give_up(candidate, name, record)
            else:
                jobs.append(self._job([candidate], alone=_says_memory(record)))
        others = [candidate for candidate in left if candidate not in suspects]
        return [*([self._job(others)] if others else []), *jobs]

    def _give_up(self, candidate: _Candidate, job: str, record: Mapping[str, Any]) -> None:
        """Record that nothing can be said of a candidate, and why."""
        what = (record["error"] or {}).get("what", "the judge's process ended")
        where = "The problem cannot be used" if record["state"] == "error" else "The judge's own process failed"
        result = CandidateResult("", "JUDGE-ERROR", f"{where}: {what}", fix=(record["error"] or {}).get("fix", ""))
        self._close(candidate.key, job, result.to_json(), record["device"], record["versions"], record["error"])

    def _close(self, key: str, job: str, result: Mapping[str, Any], device: str, versions: Mapping[str, str],
               error: Mapping[str, Any] | None) -> None:
        candidate = self.missing.pop(key)
        first = candidate.entries[0]
        common: dict[str, Any] = {
            "schema": SCHEMA, "key": key, "verdict": result["verdict"], "error": error, "job": job,
            "attempts": candidate.attempts, "seed": self.seed, "settings": plain(dict(self.settings)),
            "device": device, "versions": dict(versions),
            "judged": datetime.now(UTC).isoformat(timespec="seconds")}
        for entry in candidate.entries:
            own = self._own(entry, None if entry is first else first.id)
            self._keep({**common, **own, "result": {**result, "file": str(entry.candidate_path)}})
        self.judged += 1
        self._say(first.id, result)

    def _own(self, entry: Entry, same_as: str | None) -> dict[str, Any]:
        return {"id": entry.id, "problem": entry.problem, "problem_sha256": entry.problem_sha256,
                "candidate_sha256": entry.candidate_sha256, "same_as": same_as}

    def _keep(self, record: Any) -> None:
        self.store.add(record)
        self.told(record)

    def _say(self, name: str, result: Mapping[str, Any]) -> None:
        left, seconds = len(self.missing), time.monotonic() - self.began
        ends = about_left(seconds, self.judged, left) if left else "that is all"
        over = ((result.get("timing") or {}).get("speedup") or {}).get("value")
        speed = f", {units.digits(over)}x over eager" if isinstance(over, float) else ""
        self.progress.say(f"[{self.judged}/{self.judged + left}] {name}: {result['verdict']}{speed}; {ends}")


def _of_device_alone(told: Mapping[str, Any]) -> bool:
    """Whether a verdict on memory is one on the device's, which nobody else used when it was found."""
    return told.get("alone") is True and says_out_of_device_memory(told["result"]["reason"])


def _says_memory(record: Mapping[str, Any]) -> bool:
    """Whether a job ended for want of memory."""
    error = record["error"] or {}
    return record["state"] == "memory" or says_out_of_device_memory(f"{error.get('what')} {error.get('why')}")


def render_text(result: SetResult, *, colour: bool, width: int) -> str:
    """The set's table for a terminal: each problem with its candidates, how many are right, and the best; no final
    newline."""
    page = Page(colour, width)
    verdicts = Counter(record["verdict"] for record in result.records)
    right = sum(count for verdict, count in verdicts.items() if VERDICTS[verdict].passed)
    page.line((f"{right} of {len(result.records)} candidates are right", "bold"))
    page.paragraph(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    problems: dict[str, list[Mapping[str, Any]]] = {}
    for record in sorted(result.records, key=lambda record: natural(record["problem"])):
        problems.setdefault(record["problem"], []).append(record)
    page.heading("Problems")
    rows = [_row(name, records) for name, records in problems.items()]
    page.table(rows[:MOST_LISTED], head=("problem", "candidates", "right", "best", "over eager"))
    if len(rows) > MOST_LISTED:
        page.paragraph(f"{len(rows) - MOST_LISTED} more in {FILE}", "dim")
    page.paragraph("")
    page.paragraph(f"Results are in {result.folder / FILE} ({result.judged} candidates were judged in "
                   f"{time_in_words(result.seconds)}).", indent=0)
    return page.text()


def _row(name: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    passed = [record for record in records if VERDICTS[record["verdict"]].passed]
    best = max(passed, key=_speed, default=None)
    over = _speed(best) if best is not None else 0.0
    return [name, str(len(records)), str(len(passed)), best["id"] if best is not None and over else "",
            f"{units.digits(over)}x" if over else ""]


def _speed(record: Mapping[str, Any]) -> float:
    value = ((record["result"]["timing"] or {}).get("speedup") or {}).get("value")
    return value if isinstance(value, float) else 0.0
