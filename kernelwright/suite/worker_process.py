"""A worker as the scheduler sees it: its process, its line, its requests and its time."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelwright.suite import processes
from kernelwright.suite.jobs import Job

PACKAGE_PARENT = Path(__file__).parents[2]
PREPARE = "prepare"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a job. ``alone``: "" beside others, "device" alone on its device, "machine" alone on the machine."""

    job: Job
    number: int = 1
    alone: str = ""


class WorkerProcess:
    """One process for one attempt. Started without it, so that imports are done when it comes."""

    def __init__(self, work: str, compiles: bool, environment: Mapping[str, str], folder: Path, slot: int, cache: Path
                 ) -> None:
        self.slot = slot
        self.cache = cache
        self.temporary = Path(tempfile.mkdtemp(prefix="w", dir=folder))
        self.log = self.temporary / "log.txt"
        self.token = f"{os.getpid()}-{self.temporary.name}-{time.monotonic_ns()}"
        own, theirs = socket.socketpair()
        own.setblocking(False)
        self.line = own
        self.unread = b""
        self.line_ended = False
        extensions = self.temporary / "extensions"
        variables = {**os.environ, **environment, processes.TOKEN: self.token, "TMPDIR": str(self.temporary),
                     "TORCH_EXTENSIONS_DIR": str(extensions),
                     "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(PACKAGE_PARENT)]))}
        with theirs, open(self.log, "wb") as log, tempfile.TemporaryFile(dir=self.temporary) as shared:
            shared.truncate(8)
            self.paused_memory = mmap.mmap(shared.fileno(), 8)
            command = [sys.executable, "-m", "kernelwright.suite.worker", str(theirs.fileno()), str(shared.fileno()),
                       work, str(int(compiles))]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables,
                                            pass_fds=(theirs.fileno(), shared.fileno()), start_new_session=True)
        self.pid = self.process.pid
        self.born = time.monotonic()
        self.ready = False
        self.versions: dict[str, str] = {}
        self.attempt: Attempt | None = None
        self.preparing = False
        self.beside_others = False
        """Whether other problems ran on the device, or the machine, at any time of the attempt."""
        self.off_device = False
        self.waiting: tuple[str, int] | None = None
        """The request (``lock``, ``return`` or ``room``) that waits for its ``go``, with its number."""
        self.stopped_since: float | None = None
        self.stopped_group = False
        self.stopped_processes: list[int] = []
        self.stopped = 0.0
        self.paused_since: float | None = None
        self.paused = 0.0
        """Seconds stopped or waiting, without the pause that lasts."""
        self.started = 0.0
        self.lap = 0.0
        """Active seconds at which what its limit counts for began: the problem, or a part of it."""
        self.ended: float | None = None
        """When its result was there, or its end was decided: ending a process takes time that is not the problem's."""
        self.started_at = ""
        self.stage = "start"
        self.outcome: dict[str, Any] | None = None
        self.peak_bytes = 0
        self.noisy = False
        self.killed: tuple[str, str] | None = None
        """Why the scheduler ended it: the state and words."""
        self.dumped_at: float | None = None
        self.memory_kills = 0

    @property
    def busy(self) -> bool:
        """Whether it has something to do and no outcome yet."""
        return (self.attempt is not None or self.preparing) and self.outcome is None

    def give(self, attempt: Attempt, task: Mapping[str, Any]) -> None:
        """Hand out a problem; its time starts."""
        self.attempt = attempt
        self._start({**task, "kind": "problem"})

    def prepare(self, task: Mapping[str, Any]) -> None:
        """Have the device's peaks measured."""
        self.preparing = True
        self._start({**task, "kind": PREPARE})

    def _start(self, task: Mapping[str, Any]) -> None:
        self.started = time.monotonic()
        self.paused = self.lap = 0.0
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.memory_kills = processes.ended_for_memory()
        self.tell(task)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one message; a process that has ended does not hear it."""
        with contextlib.suppress(OSError):
            self.line.sendall((json.dumps(message) + "\n").encode())

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last look. A line that is no message is skipped."""
        while True:
            try:
                piece = self.line.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                self.line_ended = True
                break
            self.unread += piece
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                yield message

    def has_ended(self) -> bool:
        """Whether the process has ended. It is not reaped: its number stays its own until :meth:`end`."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def end(self) -> int:
        """End it and all that it started; its exit status. Its time ends first."""
        self.ended = time.monotonic()
        processes.end_session(self.pid, self.token)
        try:
            status = self.process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:  # it hangs in a driver, from where no signal gets it
            status = -signal.SIGKILL
        self.line.close()
        self.paused_memory.close()
        return status

    def clean(self) -> None:
        """Remove its temporary files."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def stop(self, *, group: bool) -> None:
        """Stop the main process, or everything that belongs to it and does not rest anyway. Its pause begins when it is
        stopped, no sooner: time in which it ran and that is taken for a pause would turn its clock back."""
        if self.stopped_since is not None:
            return
        processes.send(self.pid, signal.SIGSTOP, group=group)
        self.stopped_group = group
        self.stopped_since = time.monotonic()
        self.note_pause(self.stopped_since)
        self.stopped_processes = [self.pid]
        while group:  # until nothing has been started since the last look
            more = [p for p in processes.family(self.pid) if p not in self.stopped_processes
                    and (p == self.pid or processes.state(p) not in ("T", "t", "Z", "X", ""))]
            for process in more:
                processes.send(process, signal.SIGSTOP)
            self.stopped_processes += more
            group = bool(more)

    def resume(self) -> None:
        """Let it go on. The seconds are written before it can look at them."""
        if self.stopped_since is None:
            return
        now = time.monotonic()
        self.stopped += now - self.stopped_since
        self.stopped_since = None
        self.note_pause(now)
        struct.pack_into("d", self.paused_memory, 0, self.stopped)
        if self.stopped_group:
            processes.send(self.pid, signal.SIGCONT, group=True)
        for process in self.stopped_processes:
            processes.send(process, signal.SIGCONT)

    def go(self) -> None:
        """Answer the request that waits."""
        assert self.waiting is not None
        number, self.waiting = self.waiting[1], None
        self.note_pause(time.monotonic())
        self.tell({"go": number})

    def note_pause(self, now: float) -> None:
        """Begin or end the pause that lasts: a process pauses while it is stopped or waits for ``go``."""
        pausing = self.stopped_since is not None or self.waiting is not None
        if pausing and self.paused_since is None:
            self.paused_since = now
        elif not pausing and self.paused_since is not None:
            self.paused += now - self.paused_since
            self.paused_since = None

    def paused_seconds(self) -> float:
        """Seconds stopped or waiting so far."""
        return self.paused + (self._now() - self.paused_since if self.paused_since is not None else 0.0)

    def seconds(self) -> float:
        """Seconds since it got its problem, until its end."""
        return self._now() - self.started

    def active_seconds(self) -> float:
        """:meth:`seconds` without those in which it was stopped or waited."""
        return self.seconds() - self.paused_seconds()

    def lap_seconds(self) -> float:
        """:meth:`active_seconds` since the part of its problem began that it is at."""
        return self.active_seconds() - self.lap

    def _now(self) -> float:
        return time.monotonic() if self.ended is None else self.ended

    def printed(self, most: int = 1 << 16) -> str:
        """The end of what it printed."""
        try:
            with open(self.log, "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
                return stream.read().decode(errors="replace")
        except OSError:
            return ""
