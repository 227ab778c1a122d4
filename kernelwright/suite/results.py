"""The results of a suite on disk: one JSON object a line, only ever appended to."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from kernelwright.errors import OutputFolderUnusable, ResultsDiffer, ResultsExist
from kernelwright.names import natural
from kernelwright.suite.jobs import Job

#: Version of the record's form; it changes when a field changes its meaning or goes away.
SCHEMA = 1
FILE = "results.jsonl"
VERIFIED = "verified"
#: Fields of a mode that records leave out: they grow with the model, and stand in the report of each file.
IN_FULL = ("graph", "rewritten", "captured_steps", "steps", "backward")


class Record(TypedDict):
    """What became of one problem: a line of the results for each attempt that counts. See ``docs/bench.md``."""

    schema: int
    problem: str
    """Path below the folder of problems, without ``.py``."""
    level: str
    """Its folder there, or the folder's own name."""
    sha256: str
    """Of the problem file."""
    state: Literal["verified", "failed", "error", "crashed", "timeout", "memory"]
    """Failed: wrong (KW501); error: a coded error."""
    error: dict[str, Any] | None
    result: dict[str, Any] | None
    """The document of ``optimize --json`` without graphs, steps and path."""
    propose: dict[str, Any] | None
    """What ``bench --propose`` keeps of a run's document."""
    emitted: str | None
    """Path of the file below the output folder."""
    page: str | None
    """Path of the report's page there."""
    log: str | None
    """Path below the output folder."""
    stage: str
    """The last one that the problem reached."""
    seconds: float
    """Wall time from hand-out to result."""
    stopped_seconds: float
    """Of these, stopped or waiting."""
    attempts: int
    """How often it was tried."""
    alone: bool
    """Whether the last attempt ran alone."""
    peak_memory_bytes: int | None
    """Most that PyTorch had in use on the GPU; without one, of the process."""
    peak_host_bytes: int | None
    """Most that the process and its children were seen to use."""
    device: str
    """The device's name."""
    lane: str
    """Which device it is."""
    worker: int | None
    """The process."""
    device_was_quiet: bool
    """Whether the device was seen idle before each measurement, a CPU while it was measured."""
    versions: dict[str, str]
    """Of packages and platform."""
    settings: dict[str, Any]
    """All that bear on the result."""
    limit: float
    """Seconds that a problem may take."""
    started: str
    """UTC, ISO 8601."""


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """The newest record of each problem, by name, in natural order; lines that are no whole record are skipped.

    A run that was cut short may leave a torn line at the end.
    """
    try:
        return newest_of(file.read_bytes().split(b"\n"))
    except FileNotFoundError:
        return {}


def newest_of(lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """The same of a file's lines."""
    newest: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("problem"), str) and "state" in record:
            newest[record["problem"]] = record
    return {name: newest[name] for name in sorted(newest, key=natural)}


class Lines:
    """``results.jsonl`` of a folder, open for one run alone and only ever appended to; ``force`` empties it first.

    Raises ResultsExist (KW602) where another run has it open, or where there are results and ``keep`` is not set;
    OutputFolderUnusable (KW401).
    """

    def __init__(self, folder: Path, *, keep: bool, force: bool) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.stream = open(folder / FILE, "ab")  # noqa: SIM115 (open for as long as the run)
        except OSError as error:
            raise OutputFolderUnusable(folder=folder, problem=f"may not be written to ({error.strerror})",
                                       file=FILE) from error
        try:
            fcntl.flock(self.stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.stream.close()
            raise ResultsExist(folder=folder, found="is in use by another run") from error
        #: What stood there when it was opened.
        self.before = (folder / FILE).read_bytes().split(b"\n")
        size = os.fstat(self.stream.fileno()).st_size
        if force:
            self.stream.truncate(0)
        elif size and not keep:
            self.close()
            raise ResultsExist(folder=folder, found="has results already")
        elif size and self.before[-1]:
            self.stream.write(b"\n")  # after a torn line

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one record; on disk when this returns."""
        self.stream.write(json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def close(self) -> None:
        """Let go of the file and its lock."""
        self.stream.close()


class Results(Lines):
    """The open results of one run. ``records`` holds the newest of each problem. Raises as `Lines`."""

    def __init__(self, folder: Path, *, resume: bool = False, force: bool = False) -> None:
        super().__init__(folder, keep=resume, force=force)
        self.records = newest_of(self.before)
        #: Seconds that each problem took when it ran last, also where its record is replaced.
        self.seconds = {name: float(record.get("seconds") or 0.0) for name, record in self.records.items()}
        if force:
            self.records = {}

    def missing(self, jobs: Sequence[Job], settings: Mapping[str, Any]) -> list[Job]:
        """The jobs without a record, or whose file has changed since. Raises ResultsDiffer (KW603)."""
        for record in self.records.values():
            found = record.get("settings") or {}
            differing = sorted(name for name in {*found, *settings} if found.get(name) != settings.get(name))
            if differing:
                self.close()
                raise ResultsDiffer(folder=self.folder, differences=", ".join(
                    f"{name} {found.get(name)}, now {settings.get(name)}" for name in differing))
        return [job for job in jobs if self.records.get(job.problem, {}).get("sha256") != job.sha256]

    def add(self, record: dict[str, Any]) -> None:
        """Append one record; on disk when this returns."""
        self.append(record)
        self.records[record["problem"]] = record
