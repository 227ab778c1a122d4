"""The queue of a service on disk: one SQLite file with all submissions, their texts and what became of them.

Whatever a method says has happened is on disk when it returns (write-ahead log, synchronous). A submission runs where
its state says so, and its state leaves ``running`` once: so no result replaces another, and none is lost.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelwright.errors import (
    GivenUp,
    NotEnded,
    OutputFolderUnusable,
    QueueFull,
    ServiceFolderUnusable,
    ServiceFull,
    SubmissionUnknown,
)
from kernelwright.serve.changes import Changes
from kernelwright.serve.records import CANCELLED, DONE, ENDED, FAILED, QUEUED, RUNNING, SCHEMA, Status
from kernelwright.suite.judge_runner import PASSING

FILE, LOCK = "queue.sqlite", "lock"
#: How often one is begun by services that end while they have it.
MOST_BEGINS = 5
#: Version of the tables.
_TABLES = 1
_MAKE = """
CREATE TABLE IF NOT EXISTS submissions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, problem TEXT NOT NULL,
    candidate TEXT NOT NULL, settings TEXT NOT NULL, asked_seed INTEGER, alike TEXT NOT NULL, state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, submitted TEXT NOT NULL, begun TEXT, ended TEXT, verdict TEXT, result TEXT,
    error TEXT, seed INTEGER, device TEXT NOT NULL DEFAULT '', versions TEXT NOT NULL DEFAULT '{}');
CREATE INDEX IF NOT EXISTS by_state ON submissions (state, owner, alike, attempts, number);
CREATE INDEX IF NOT EXISTS by_owner ON submissions (owner, number);
"""
#: All but the texts.
_TOLD = ("number, id, settings, state, attempts, submitted, begun, ended, verdict, result, error, seed, device, "
         "versions")
#: What of SQLite's errors says that the disk does not take more: full, a failed write, a file that cannot be made.
_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})


class Store:
    """The submissions of one service, for all of its threads. ``most`` may wait.

    Raises OutputFolderUnusable (KW401) where the folder cannot be written to, ServiceFolderUnusable (KW754) where
    another service has it. Any method that writes raises ServiceFull (KW761) where the disk is full, and then has
    written nothing.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self.changes = Changes()
        self._mutex = threading.RLock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = open(folder / LOCK, "ab")  # noqa: SIM115 (open for as long as the service)
        except OSError as error:
            raise OutputFolderUnusable(folder=folder, problem=f"may not be written to ({error.strerror})",
                                       file=FILE) from error
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._held.close()
            raise ServiceFolderUnusable(folder=folder, found="another service uses it") from error
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._held.close()
            raise ServiceFolderUnusable(folder=folder, found=f"{FILE} is no queue ({error})") from error
        except BaseException:
            self._held.close()
            raise

    def _open(self) -> None:
        self.database = sqlite3.connect(self.folder / FILE, isolation_level=None, check_same_thread=False)
        self.database.row_factory = sqlite3.Row
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        version = self.database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _TABLES):
            raise ServiceFolderUnusable(folder=self.folder, found=f"its tables are of another version ({version})")
        self.database.executescript(_MAKE)
        self.database.execute(f"PRAGMA user_version = {_TABLES}")
        os.chmod(self.folder / FILE, 0o600)
        with self._writing():  # what ran when the service was killed
            rows = self.database.execute("SELECT id, attempts FROM submissions WHERE state = ?", (RUNNING,)).fetchall()
            for row in rows:
                if row["attempts"] >= MOST_BEGINS:
                    error = GivenUp(attempts=row["attempts"]).as_json()
                    self._set(row["id"], state=FAILED, error=json.dumps(error), ended=_now())
                else:
                    self._set(row["id"], state=QUEUED)

    def close(self) -> None:
        """Let go of the files."""
        with self._mutex:
            self.database.close()
            self._held.close()

    # ---- what clients do -----------------------------------------------------------------------------

    def submit(self, owner: str, problem: str, candidate: str, settings: Mapping[str, Any],
               seed: int | None) -> tuple[str, bool]:
        """Put a submission into the queue, unless it is known: its id, and whether it is to be judged now.

        What was cancelled, failed or got a verdict that is the judge's own doing is judged again. Raises QueueFull
        (KW759).
        """
        kept = json.dumps(settings, sort_keys=True)
        alike = _hash(problem, kept, seed)
        name = _hash(owner, alike, candidate)
        with self._writing():
            row = self.database.execute("SELECT state, verdict FROM submissions WHERE id = ?", (name,)).fetchone()
            again = row is not None and (row["state"] in (CANCELLED, FAILED) or row["verdict"] in PASSING)
            if row is not None and not again:
                return name, False
            queued = self.counts()[QUEUED]
            if queued >= self.most:
                raise QueueFull(queued=queued)
            if again:
                self.database.execute("DELETE FROM submissions WHERE id = ?", (name,))
            self.database.execute(
                "INSERT INTO submissions (id, owner, problem, candidate, settings, asked_seed, alike, state, submitted)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, owner, problem, candidate, kept, seed, alike, QUEUED, _now()))
        self.changes.tell(name)
        return name, True

    def cancel(self, name: str, owner: str) -> bool:
        """Have one not judged that has not ended; whether it ran. Raises SubmissionUnknown (KW758)."""
        with self._writing():
            state = self._row(name, owner)["state"]
            if state not in ENDED:
                self._set(name, state=CANCELLED, ended=_now())
        self.changes.tell(name)
        return state == RUNNING

    def delete(self, name: str, owner: str) -> None:
        """Forget one that has ended. Raises SubmissionUnknown (KW758), NotEnded (KW762)."""
        with self._writing():
            state = self._row(name, owner)["state"]
            if state not in ENDED:
                raise NotEnded(id=name, state=state)
            self.database.execute("DELETE FROM submissions WHERE id = ?", (name,))
        self.changes.tell(name)

    def status(self, name: str, owner: str, stage: str = "") -> Status:
        """What is known of one. Raises SubmissionUnknown (KW758)."""
        with self._mutex:
            row = self._row(name, owner)
            position = None
            if row["state"] == QUEUED:
                position = self._count("state = ? AND number < ?", QUEUED, row["number"])
        return _status(row, position, stage)

    def listed(self, owner: str, state: str | None, after: int, most: int) -> tuple[list[Status], int | None]:
        """Those of a client whose number is beyond ``after``, without results, and the last number if there may be
        more."""
        wanted, values = ("AND state = ?", [state]) if state else ("", [])
        with self._mutex:
            rows = self.database.execute(
                f"SELECT {_TOLD} FROM submissions WHERE owner = ? AND number > ? {wanted} ORDER BY number LIMIT ?",
                (owner, after, *values, most)).fetchall()
        return [_status(row, None, "", result=False) for row in rows], rows[-1]["number"] if len(rows) == most else None

    def counts(self) -> dict[str, int]:
        """How many wait, and how many run."""
        with self._mutex:
            return {state: self._count("state = ?", state) for state in (QUEUED, RUNNING)}

    # ---- what the judge does -------------------------------------------------------------------------

    def claim(self, workers: int, most: int) -> list[sqlite3.Row]:
        """What to judge next, in one process; from now on it runs. None: nothing waits.

        That is the first one that waits of the client of whom the fewest run, with others of that client that have the
        same problem and options, at most ``most`` and no more than leaves something for each of ``workers``. One
        that a process ended with before is by itself.
        """
        with self._writing():
            oldest = dict(self.database.execute(
                "SELECT owner, MIN(number) FROM submissions WHERE state = ? GROUP BY owner", (QUEUED,)).fetchall())
            if not oldest:
                return []
            running = dict(self.database.execute(
                "SELECT owner, COUNT(*) FROM submissions WHERE state = ? GROUP BY owner", (RUNNING,)).fetchall())
            number = min(oldest.items(), key=lambda entry: (running.get(entry[0], 0), entry[1]))[1]
            rows = self.database.execute("SELECT * FROM submissions WHERE number = ?", (number,)).fetchall()
            if not rows[0]["attempts"]:
                like = "state = ? AND owner = ? AND alike = ? AND attempts = 0"
                values = (QUEUED, rows[0]["owner"], rows[0]["alike"])
                size = min(most, max(1, self._count(like, *values) // workers))
                rows = self.database.execute(f"SELECT * FROM submissions WHERE {like} ORDER BY number LIMIT ?",
                                             (*values, size)).fetchall()
            for row in rows:
                self._set(row["id"], state=RUNNING, attempts=row["attempts"] + 1, begun=_now())
        for row in rows:
            self.changes.tell(row["id"])
        return rows

    def finish(self, name: str, result: Mapping[str, Any], seed: int, device: str,
               versions: Mapping[str, str]) -> bool:
        """Keep the verdict of one that runs; False where it does not, as it was cancelled."""
        return self._leave(name, state=DONE, verdict=result["verdict"], result=json.dumps(result, allow_nan=False),
                           seed=seed, device=device, versions=json.dumps(dict(versions)), ended=_now())

    def fail(self, name: str, error: Mapping[str, Any]) -> bool:
        """Keep that one that runs gets no verdict, and why; False where it does not run."""
        return self._leave(name, state=FAILED, error=json.dumps(dict(error)), ended=_now())

    def lose(self, name: str, most: int, error: Mapping[str, Any]) -> None:
        """Have one that runs, whose process was lost, wait again, or with ``most`` attempts fail for ``error``."""
        with self._writing():
            self.database.execute(
                "UPDATE submissions SET state = ?, error = ?, ended = ? WHERE id = ? AND state = ? AND attempts >= ?",
                (FAILED, json.dumps(dict(error)), _now(), name, RUNNING, most))
            self.database.execute("UPDATE submissions SET state = ? WHERE id = ? AND state = ?",
                                  (QUEUED, name, RUNNING))
        self.changes.tell(name)

    def put_back(self, names: Iterable[str], *, counted: bool) -> None:
        """Have those that run wait again, in their old place. counted: whether the attempt was one that counts."""
        names = list(names)
        with self._writing():
            for name in names:
                self.database.execute("UPDATE submissions SET state = ?, attempts = attempts - ? WHERE id = ? "
                                      "AND state = ?", (QUEUED, int(not counted), name, RUNNING))
        for name in names:
            self.changes.tell(name)

    # ---- the tables ----------------------------------------------------------------------------------

    def _leave(self, name: str, **values: Any) -> bool:
        with self._writing():
            row = self.database.execute("SELECT state FROM submissions WHERE id = ?", (name,)).fetchone()
            runs = row is not None and row["state"] == RUNNING
            if runs:
                self._set(name, **values)
        self.changes.tell(name)
        return runs

    def _row(self, name: str, owner: str) -> sqlite3.Row:
        row = self.database.execute(f"SELECT {_TOLD} FROM submissions WHERE id = ? AND owner = ?",
                                    (name, owner)).fetchone()
        if row is None:
            raise SubmissionUnknown(id=name)
        return row

    def _set(self, name: str, **values: Any) -> None:
        columns = ", ".join(f"{column} = ?" for column in values)
        self.database.execute(f"UPDATE submissions SET {columns} WHERE id = ?", (*values.values(), name))

    def _count(self, condition: str, *values: Any) -> int:
        return self.database.execute(f"SELECT COUNT(*) FROM submissions WHERE {condition}", values).fetchone()[0]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: all of it is on disk afterwards, or nothing."""
        with self._mutex:
            try:
                self.database.execute("BEGIN IMMEDIATE")
                yield
                self.database.execute("COMMIT")
            except BaseException as error:
                if self.database.in_transaction:
                    self.database.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _NO_ROOM:
                    raise ServiceFull from error
                raise


def _status(row: sqlite3.Row, position: int | None, stage: str, *, result: bool = True) -> Status:
    running = row["state"] == RUNNING
    return {"schema": SCHEMA, "id": row["id"], "state": row["state"], "position": position,
            "stage": stage if running else "", "attempts": row["attempts"], "submitted": row["submitted"],
            "begun": row["begun"], "ended": row["ended"], "verdict": row["verdict"],
            "result": json.loads(row["result"]) if row["result"] and result else None,
            "error": json.loads(row["error"]) if row["error"] else None, "seed": row["seed"],
            "settings": json.loads(row["settings"]), "device": row["device"], "versions": json.loads(row["versions"])}


def _hash(*told: Any) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
