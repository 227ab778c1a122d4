"""Workers in tens of milliseconds: one clean process has imported PyTorch, and forks a worker whenever one is wanted.

It has never seen a candidate, has one thread, and has not touched a GPU. Each worker is confined after the fork exactly
as one that is started anew (`isolation.start`), which remains the way where there is no zygote.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright.judge.sandbox import isolation, process_tree
from kernelwright.judge.sandbox.confine import InForce, Mechanisms
from kernelwright.judge.sandbox.limits import Limits

_BOOT = "import sys; sys.path.append({root!r}); from kernelwright.judge.worker.zygote_process import main; main({line})"
#: Long enough for a process that others stop while they measure (``device_lock.py``).
_READY_SECONDS, _START_SECONDS, _END_SECONDS = 300.0, 300.0, 10.0
#: Variables that are read when PyTorch is loaded: workers that differ in one of them have different zygotes.
_EARLY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "LD_LIBRARY_PATH", "LANG",
          "LC_ALL")


class Forked:
    """A worker that a zygote forked; as `isolation.Sandboxed`."""

    def __init__(self, pid: int, control: int, ended: int) -> None:
        self.pid, self._control, self._ended = pid, control, ended
        self._status: int | None = None
        self.isolation = ""

    def poll(self) -> int | None:
        """None while it runs; then its exit status, or the negative number of the signal that ended it."""
        if self._status is None and select.select([self._ended], [], [], 0)[0]:
            text = os.read(self._ended, 32)
            os.close(self._ended)
            self._status = int(text) if text else -signal.SIGKILL
        return self._status

    def end(self) -> None:
        """End the worker and all that it started. May be called again."""
        if self._control >= 0:
            os.close(self._control)  # the process above it ends everything below
            self._control = -1
        deadline = time.monotonic() + _END_SECONDS
        while self.poll() is None and time.monotonic() < deadline:
            select.select([self._ended], [], [], 0.1)
        if self.poll() is None:
            process_tree.end_members(self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """The process that forks. Raises SandboxError where it does not start."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._lock = threading.Lock()
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = own
        boot = _BOOT.format(root=str(Path(__file__).parents[3]), line=theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-P", "-B", "-c", boot], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(theirs.fileno(),), cwd="/",
                # a library's own threads would not survive a fork
                env={**environment, "OPENBLAS_NUM_THREADS": "1"})
        self.pid = self._process.pid
        self._line.settimeout(_READY_SECONDS)
        try:
            self._said()
        except isolation.SandboxError:
            self.close()
            raise

    def start(self, folder: Path, pass_fds: tuple[int, ...], limits: Limits, environment: dict[str, str],
              stdout_fd: int, mechanisms: Mechanisms, readable: tuple[str, ...] = ()) -> Forked:
        """Fork a worker that serves the descriptors ``pass_fds`` (line, inputs, outputs), confined to ``folder``, which
        may read the files ``readable``, too.

        Raises SandboxError.
        """
        plan = isolation.plan([*readable], folder.resolve(), limits, mechanisms)
        plan = replace(plan, protected=(*plan.protected, self.pid, -self.pid))
        (folder / "tmp").mkdir(exist_ok=True)
        status, status_end = os.pipe()
        control_end, control = os.pipe()
        ended, ended_end = os.pipe()
        order = {"plan": plan.to_json(), "environment": environment, "folder": str(folder.resolve())}
        passed = [*pass_fds, stdout_fd, status_end, control_end, ended_end]
        try:
            with self._lock:
                self._line.settimeout(_START_SECONDS)
                socket.send_fds(self._line, [json.dumps(order).encode()], passed)
                pid = int(self._said()["pid"])
        except (OSError, isolation.SandboxError) as error:
            for descriptor in (status, control, ended):
                os.close(descriptor)
            raise isolation.SandboxError(f"no worker could be forked: {error}") from None
        finally:
            for descriptor in (status_end, control_end, ended_end):
                os.close(descriptor)
        worker = Forked(pid, control, ended)
        try:
            worker.isolation = isolation.words(_in_force(status))
        except BaseException:
            worker.end()
            raise
        finally:
            os.close(status)
        return worker

    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it. Workers that it forked go on."""
        self._line.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _said(self) -> dict[str, Any]:
        try:
            text = self._line.recv(1 << 16)
            return json.loads(text)
        except (OSError, ValueError) as error:
            raise isolation.SandboxError(f"the process that forks workers does not answer: {error}") from None


def _in_force(status: int) -> InForce:
    """What the worker found in force when it had confined itself. Raises SandboxError."""
    lines = isolation.read_until_started(status)
    answer = next((line for line in lines if "error" in line), lines[0] if lines else {"error": "it said nothing"})
    if "error" in answer:
        raise isolation.SandboxError(f"the worker's process could not be started: {answer['error']}")
    return InForce(**lines[0])


_shared: dict[tuple[str | None, ...], Zygote] = {}
_failed: dict[tuple[str | None, ...], str] = {}
_lock = threading.Lock()


def shared(environment: dict[str, str]) -> Zygote | None:
    """The zygote for workers with ``environment``, started at the first call; None where there can be none."""
    key = tuple(environment.get(name) for name in _EARLY)
    with _lock:
        if key in _failed:
            return None
        if key not in _shared or not _shared[key].alive():
            try:
                _shared[key] = Zygote(environment)
            except isolation.SandboxError as error:
                _failed[key] = str(error)
                return None
        return _shared[key]


def give_up(environment: dict[str, str], reason: str) -> None:
    """Workers with ``environment`` are started anew from now on."""
    key = tuple(environment.get(name) for name in _EARLY)
    with _lock:
        _failed[key] = reason
        if key in _shared:
            _shared.pop(key).close()


def close_all() -> None:
    """End the zygotes of this process."""
    with _lock:
        for zygote in _shared.values():
            zygote.close()
        _shared.clear()


atexit.register(close_all)

__all__ = ["Forked", "Zygote", "close_all", "give_up", "shared"]
