"""A candidate's process as the judge sees it: started, asked, watched, and ended with all that it started."""

from __future__ import annotations

import json
import re
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kernelwright.device_lock import clock
from kernelwright.judge.sandbox import isolation, process_tree
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker import zygote
from kernelwright.judge.worker.exchange import START_SECONDS, Exchange
from kernelwright.judge.worker.machine import free_bytes, oom_kills, overrides, proportional_bytes
from kernelwright.judge.worker.printed import Printed
from kernelwright.judge.worker.protocol import LONGEST_LINE, Broken, parse

__all__ = ["Limits", "Worker", "WorkerFailure", "free_bytes"]

#: Share of the free memory that a worker may use where nothing else was said.
MEMORY_SHARE = 0.75
#: How long the end of a process may take that is about to end: its memory is handed back, its children are ended.
_ENDING_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_HERE = Path(__file__).parent


class WorkerFailure(Exception):
    """A candidate's process failed. ``verdict`` is a code of the list, ``sentence`` says what happened, ``printed`` is
    the end of what it printed, ``stage`` what it was doing: start (which is nothing of the candidate's), build, run."""

    def __init__(self, verdict: str, sentence: str, printed: str, stage: str) -> None:
        super().__init__(sentence)
        self.verdict, self.sentence, self.printed, self.stage = verdict, sentence, printed, stage


class Worker(Exchange):
    """The process of one candidate, its folder, its shared memory and its line. A context manager; `close` ends it.

    ``isolation`` says in words what confines it; ``readable`` are files that it may read besides. One that
    ``only_builds`` sees the device and has nothing of it: no context, and no memory. Raises WorkerFailure (JUDGE-ERROR,
    JUDGE-NO-DEVICE) where it does not start.
    """

    def __init__(self, candidate: Path, device: torch.device, limits: Limits | None = None, *,
                 cuda_visible: str | None = None, readable: tuple[str, ...] = (),
                 only_builds: bool = False) -> None:
        self._readable = readable
        self.candidate, self.limits = candidate, limits or Limits()
        self.folder = Path(tempfile.mkdtemp(prefix="kernelwright_judge_"))
        self.source_name = source_name(candidate)
        super().__init__(torch.device("cpu") if only_builds else device)
        self.device = device
        self._failed: tuple[str, str, str, str] | None = None
        self._paused = self._asked = False
        self._seconds = 0.0  # that the request under way may take
        #: How often limits are looked at while an answer is waited for: looking costs the machine time.
        self.look_seconds = _LOOK_SECONDS
        self.worker_device = torch.device("cpu") if only_builds or device.type == "cpu" else torch.device("cuda", 0)
        self._memory = self.limits.memory_bytes or int(MEMORY_SHARE * free_bytes())
        self._oom_kills = oom_kills()
        self._started: isolation.Sandboxed | zygote.Forked | None = None
        self._own: process_tree.Process | None = None  # the one that runs the candidate
        self._ours: socket.socket | None = None
        self._output: Printed | None = None
        variables = isolation.environment(self.folder, overrides(device, cuda_visible))
        try:
            furnish(self.folder, candidate)
            try:
                self._start(variables, zygote.shared(variables))
            except (isolation.SandboxError, WorkerFailure) as error:
                self._end()
                zygote.give_up(variables, str(error))  # what cannot start here can start no other worker
                self._start(variables, None)
        except (isolation.SandboxError, WorkerFailure) as error:
            self.close()
            no_device = getattr(error, "verdict", "") == "JUDGE-NO-DEVICE"
            verdict = "JUDGE-NO-DEVICE" if no_device else "JUDGE-ERROR"
            raise WorkerFailure(verdict, f"No worker could be started: {error}", self.printed(), "start") from None
        except BaseException:
            self.close()
            raise

    def _start(self, variables: dict[str, str], forks: zygote.Zygote | None) -> None:
        """Start the process, forked where there is a zygote; before any of the candidate's code, its device must work.

        Raises SandboxError, and WorkerFailure where it does not answer, or does not reach its device.
        """
        self._failed, self._unread = None, b""
        self._output = Printed(self.limits.output_bytes, self.limits.flood_bytes)
        self._ours, theirs = socket.socketpair()
        mechanisms = isolation.available(self.device.type == "cuda")
        with theirs:
            passed = (theirs.fileno(), self.inputs.descriptor, self.outputs.descriptor)
            given = (self.limits, variables, self._printed.descriptor, mechanisms, self._readable)
            if forks is not None:
                self._started = forks.start(self.folder, passed, *given)
            else:
                command = [sys.executable, "-I", "-P", "-B", str(self.folder / "worker.py"), *map(str, passed)]
                self._started = isolation.start(command, self.folder, passed, *given)
        self._printed.begin()
        self.isolation = self._process.isolation
        try:
            parse(self._receive(clock() + START_SECONDS, "start"), None)
        except Broken as error:
            raise self._broken(error, "start") from None
        self._own = process_tree.innermost(self._process.pid)
        reply = self.request("place", {"device": str(self.worker_device)}, seconds=START_SECONDS, stage="start")
        if not reply["ok"]:
            raise WorkerFailure("JUDGE-NO-DEVICE", str(reply.get("error", {}).get("message", ""))[:500],
                                self.printed(), "start")
        self.isolation += self.share_first()

    @property
    def _process(self) -> isolation.Sandboxed | zygote.Forked:
        assert self._started is not None  # nobody has a worker that did not start
        return self._started

    @property
    def _line(self) -> socket.socket:
        assert self._ours is not None
        return self._ours

    @property
    def _printed(self) -> Printed:
        assert self._output is not None
        return self._output

    def request(self, kind: str, payload: dict[str, Any], *, seconds: float, stage: str,
                descriptors: list[int] | None = None) -> dict[str, Any]:
        """Ask for ``kind``, wait at most ``seconds``; the reply, whose fields are still to be checked.

        ``stage`` is "build" or "run", or another word for the sentences; ``descriptors`` go with the request. Raises
        WorkerFailure, also for every later request.
        """
        if self._failed is not None:
            raise WorkerFailure(*self._failed)
        self._resume()
        nonce = secrets.token_hex(8)
        self._seconds = seconds
        deadline = clock() + seconds
        try:
            if not self._unread and select.select([self._line], [], [], 0)[0]:
                self._take(stage)
            if self._unread:
                raise Broken("wrote into the judge's channel without having been asked")
            line = json.dumps({"kind": kind, "nonce": nonce, "payload": payload}).encode() + b"\n"
            self._asked = True
            self._send(line, deadline, stage, descriptors or [])
            reply = parse(self._receive(deadline, stage), nonce)
            if self._unread:
                raise Broken("answered twice")
            self._asked = False
        except Broken as error:
            raise self._broken(error, stage) from None
        except WorkerFailure:
            raise
        except BaseException:  # of a signal, say: nobody takes the answer that is under way for an unasked one
            self._process.end()
            self._failure("JUDGE-ERROR", "The judge was interrupted while it waited for an answer of the candidate's "
                          "process.", stage)
            raise
        if self._printed.flooded:  # the answer may be here before anybody has looked
            self._flooded(stage)
        return reply

    @property
    def failure(self) -> WorkerFailure | None:
        """The failure after which it answers no more, or None. A new one each time: what was raised holds every frame
        that it passed, and so the tensors of whoever asked."""
        return None if self._failed is None else WorkerFailure(*self._failed)

    def lost_device(self, message: str, stage: str) -> WorkerFailure:
        """End the worker, whose device runs nothing any more; the failure, to be raised."""
        self._process.end()
        first = next((line for line in message.splitlines() if line.strip()), "no kernel of its process runs any more")
        return self._failure("CRASH-DEVICE", f"The candidate broke the device's context: {first[:300]}", stage)

    def breach(self, sentence: str, stage: str) -> WorkerFailure:
        """End the worker for a breach of the protocol; the failure, to be raised."""
        return self._broken(Broken(sentence), stage)

    def pause(self) -> None:
        """Stop everything that the worker started, until the next request: others are timed meanwhile."""
        if self.failure is None and self._started is not None:
            self._paused = True
            process_tree.signal_members(self._process.pid, signal.SIGSTOP)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            process_tree.signal_members(self._process.pid, signal.SIGCONT)

    @property
    def process_number(self) -> int:
        """The number of the process under which everything of this worker runs."""
        return self._process.pid

    def printed(self) -> str:
        """The end of what the worker has printed so far."""
        return self._printed.text() if self._output is not None else ""

    def close(self) -> None:
        """End everything that the worker started and remove its folder. May be called again."""
        self._end()
        self.inputs.close()
        self.outputs.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        if self._ours is not None:
            self._line.close()
        if self._started is not None:
            self._process.end()
        if self._output is not None:
            self._printed.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, data: bytes, deadline: float, stage: str, descriptors: list[int]) -> None:
        view = memoryview(data)
        while len(view):
            if not select.select([], [self._line], [], self.look_seconds)[1]:
                self._check(deadline, stage)
            else:
                try:
                    sent = (socket.send_fds(self._line, [view], descriptors, socket.MSG_DONTWAIT) if descriptors else
                            self._line.send(view, socket.MSG_DONTWAIT))
                    view, descriptors = view[sent:], []
                except BlockingIOError:
                    continue
                except OSError:
                    self._ended(stage)

    def _receive(self, deadline: float, stage: str) -> bytes:
        """The next line. Raises WorkerFailure and Broken."""
        while b"\n" not in self._unread:
            if len(self._unread) > LONGEST_LINE:
                raise Broken("wrote a line without an end into the judge's channel")
            wait = max(0.0, min(self.look_seconds, deadline - clock()))
            if not select.select([self._line], [], [], wait)[0]:
                self._check(deadline, stage)
                continue
            self._take(stage)
            if b"\n" not in self._unread and clock() > deadline:
                self._check(deadline, stage)
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _take(self, stage: str) -> None:
        """Read what is there. Raises WorkerFailure where the line has ended."""
        try:
            piece = self._line.recv(1 << 20)
        except OSError:
            piece = b""
        if not piece:
            self._ended(stage)
        self._unread += piece

    def _check(self, deadline: float, stage: str) -> None:
        """Raise WorkerFailure where a limit is passed."""
        if self._printed.flooded:
            self._flooded(stage)
        if clock() > deadline:
            building = stage == "build"
            usual = self._seconds == (self.limits.build_seconds if building else self.limits.run_seconds)
            option = "; --limit BUILD,CALL sets how many seconds a build and a call may take" if usual else ""
            self._fail("BUILD-TIMEOUT" if building else "CRASH-TIMEOUT",
                       f"The candidate did not finish {_doing(stage)} in its {self._seconds:.3g} s{option}.", stage)
        self._look_for_end(stage)
        count, _, size = isolation.usage(self._process.pid)
        if count > self.limits.processes:
            self._fail("CRASH-PROCESSES", f"The candidate has {count} processes, {self.limits.processes} are allowed.",
                       stage)
        if size > self._memory and (size := proportional_bytes(self._process.pid)) > self._memory:
            self._fail("CRASH-MEMORY", f"The candidate uses {size / 2**30:.1f} GiB of memory, "
                       f"{self._memory / 2**30:.1f} GiB are allowed.", stage)

    def _look_for_end(self, stage: str) -> None:
        if self._process.poll() is not None and not select.select([self._line], [], [], 0)[0]:
            self._ended(stage)

    def _flooded(self, stage: str) -> None:
        self._fail("CRASH-FLOOD", f"The candidate printed more than {self.limits.flood_bytes >> 20} MiB.", stage)

    def _ended(self, stage: str) -> None:
        """Raise WorkerFailure for a process that is gone, or has closed its line: which of the two, the kernel says.
        How long an end takes depends on what else the machine does."""
        deadline, when = time.monotonic() + _ENDING_SECONDS, _during(stage) if self._asked else "between two requests"
        closed = self._own is not None and process_tree.runs(self._own)
        while (status := self._process.poll()) is None and not closed and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._printed.flooded:
            self._flooded(stage)
        if status is None and closed:
            self._fail("CHEAT-PROTOCOL", f"The candidate closed the judge's channel {when}.", stage)
        elif status is None:
            self._fail("JUDGE-ERROR", f"The candidate's process ended {when}, and the system does not say how.", stage)
        elif status == -signal.SIGKILL and oom_kills() > self._oom_kills:
            verdict = "CRASH-MEMORY" if self._asked else "JUDGE-ERROR"  # who is not asked for anything needs no more
            self._fail(verdict, f"The system ended the candidate's process {when}, because memory had run out.", stage)
        elif status < 0:
            name = signal.Signals(-status).name if -status in list(signal.Signals) else f"signal {-status}"
            self._fail("CRASH-FLOOD" if name == "SIGXFSZ" else "CRASH-SIGNAL",
                       f"The candidate's process was ended by {name} {when}.", stage)
        else:
            self._fail("CRASH-SIGNAL", f"The candidate ended its process with status {status} {when}, as "
                       "exit and os._exit do.", stage)

    def _fail(self, verdict: str, sentence: str, stage: str) -> None:
        self._process.end()
        self._printed.drain()
        raise self._failure(verdict, sentence, stage)

    def _broken(self, error: Broken, stage: str) -> WorkerFailure:
        self._process.end()
        return self._failure("CHEAT-PROTOCOL", f"The candidate's process {error}.", stage)

    def _failure(self, verdict: str, sentence: str, stage: str) -> WorkerFailure:
        self._failed = (verdict, sentence, self.printed(), stage)
        return WorkerFailure(*self._failed)


def furnish(folder: Path, candidate: Path) -> None:
    """Put a worker's own files and the candidate's text into its folder."""
    shutil.copy(_HERE / "main.py", folder / "worker.py")
    shutil.copytree(_HERE.parent / "inside", folder / "inside", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(candidate, folder / source_name(candidate))
    for name in ("work", "build"):
        (folder / name).mkdir()


def source_name(candidate: Path) -> str:
    """The name of the candidate's file in its worker's folder: its own, where nothing else could have that."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", candidate.stem)[:80] or "candidate"
    return f"{stem}_.py" if stem in ("worker", "inside", "work", "tmp", "build") else f"{stem}.py"


def _doing(stage: str) -> str:
    return {"build": "importing, compiling and constructing", "run": "its forward"}.get(stage, f"the stage {stage}")


def _during(stage: str) -> str:
    return {"build": "while it was imported or constructed", "run": "in its forward"}.get(stage, f"in stage {stage}")
