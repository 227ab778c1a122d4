"""The folder of a run: every prompt, answer, candidate and verdict, written as it comes and never changed.

    run.json        what was asked for, of which model's file
    events.jsonl    what happened, one JSON object a line, in order, each on the disk before the next thing begins
    ours.py         kernelwright's own file
    prompts/        the messages of each call      answers/    what came back, as it came
    candidates/     the files that were judged     verdicts/   the judge's documents

An interrupted run has all that was paid for: what stands in ``events.jsonl`` is not asked, and not judged, again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.emit.write import write_file
from kernelwright.errors import OutputFolderUnusable, RunDiffers, RunExists, RunMissing

SCHEMA = 1
_RUN, _EVENTS = "run.json", "events.jsonl"
_PARTS = ("prompts", "answers", "candidates", "verdicts")
#: What stands where a key stood.
HIDDEN = "[key]"


class Store:
    """A run's folder. ``secrets`` are texts that stand in none of its files."""

    def __init__(self, folder: Path, header: Mapping[str, Any], events: list[dict[str, Any]],
                 secrets: Sequence[str] = ()) -> None:
        self.folder = folder
        self.header = header
        self.events = events
        self.secrets = tuple(secret for secret in secrets if len(secret) >= 4)
        self._lock = threading.Lock()
        self._stream = open(folder / _EVENTS, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by close)

    def close(self) -> None:
        """Close the list of events."""
        self._stream.close()

    def add(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Write one event; it is on the disk when this returns."""
        event = {"event": kind, "at": round(time.time(), 3), **fields}
        with self._lock:
            self._stream.write(self._clean(json.dumps(event, allow_nan=False)) + "\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self.events.append(event)
        return event

    def of(self, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """The events of a kind with these fields, in order."""
        return (e for e in list(self.events) if e["event"] == kind and all(e.get(k) == v for k, v in fields.items()))

    def seconds_before(self) -> float:
        """Seconds that the run has taken up to now, from its beginnings (the events ``begun``) to what came last of
        each."""
        whole, begun, last = 0.0, None, 0.0
        for event in self.events:
            if event["event"] == "begun":
                whole += last - begun if begun is not None else 0.0
                begun = event["at"]
            last = event["at"]
        return whole + (last - begun if begun is not None else 0.0)

    def put(self, name: str, text: str) -> Path:
        """Write a file of the run, whole or not at all, and return its path."""
        path = self.folder / name
        write_file(path, self._clean(text), force=True)
        return path

    def put_json(self, name: str, document: Any) -> Path:
        """Write a document."""
        return self.put(name, json.dumps(document, indent=1, allow_nan=False) + "\n")

    def read(self, name: str) -> str:
        """The text of a file of the run. Raises RunMissing (KW810) where it is gone."""
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise RunMissing(folder=self.folder, found=f"{name} is gone ({error.strerror})") from error

    def _clean(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text


def create(folder: Path, header: Mapping[str, Any], *, force: bool, secrets: Sequence[str] = ()) -> Store:
    """A new run. Raises RunExists (KW808) where one is there and ``force`` is not set, and OutputFolderUnusable
    (KW401). Files that are no part of a run are never touched."""
    if (folder / _RUN).exists():
        if not force:
            raise RunExists(folder=folder)
        for part in _PARTS:
            shutil.rmtree(folder / part, ignore_errors=True)
        for name in ("result.json", "critique.md", _EVENTS, _RUN):
            (folder / name).unlink(missing_ok=True)
    try:
        for part in _PARTS:
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFolderUnusable(folder=folder.parent, problem=f"can't take the folder ({error.strerror})",
                                   file=folder.name) from error
    write_file(folder / _RUN, json.dumps({"schema": SCHEMA, **header}, indent=1, allow_nan=False) + "\n", force=True)
    return Store(folder, header, [], secrets)


def reopen(folder: Path, header: Mapping[str, Any] | None = None, secrets: Sequence[str] = ()) -> Store:
    """A run that is there, to go on with, or to be replayed (without ``header``).

    Raises RunMissing (KW810), and RunDiffers (KW809) where it was of another model or made with other settings.
    """
    try:
        found = json.loads((folder / _RUN).read_text(encoding="utf-8"))
        lines = (folder / _EVENTS).read_bytes() if (folder / _EVENTS).exists() else b""
    except (OSError, ValueError) as error:
        raise RunMissing(folder=folder, found=getattr(error, "strerror", None) or "run.json is no JSON") from error
    if header is not None:
        for name, value in header.items():
            if found.get(name) != value:
                raise RunDiffers(folder=folder, found=_difference(name, found.get(name), value))
    events, whole = [], 0
    for line in lines.split(b"\n")[:-1]:  # a last line without its end was being written when the run ended
        try:
            events.append(json.loads(line))
        except ValueError:
            break
        whole += len(line) + 1
    if whole < len(lines):
        os.truncate(folder / _EVENTS, whole)
    for part in _PARTS:
        (folder / part).mkdir(exist_ok=True)
    return Store(folder, found, events, secrets)


def _difference(name: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        parts = [f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in {**before, **now}
                 if before.get(key) != now.get(key)]
        return "; ".join(parts)
    if name == "digest":
        return "the model's file has changed"
    return f"{name} was {before!r} and is {now!r}"


def digest(path: Path) -> str:
    """What tells a file's text from others."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
