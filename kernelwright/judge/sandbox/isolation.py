"""Start a candidate's process with as much isolation as the system gives, and say in words what is in force.

No privilege and no further program is needed. Each mechanism is tried on this machine before it is used (`available`)
and left out where it does not work; `Sandboxed.isolation` says what the worker itself found in force after it had
applied it. docs/judge_isolation.md says what is promised and what is not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernelwright.judge.sandbox import landlock, process_tree, seccomp
from kernelwright.judge.sandbox.confine import InForce, Mechanisms, Plan, apply_in_child
from kernelwright.judge.sandbox.environment import devices, environment, protected_processes, readable
from kernelwright.judge.sandbox.kernel_calls import PR_SET_DUMPABLE, prctl
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.sandbox.process_tree import usage
from kernelwright.judge.sandbox.trials import CUDA_TRIAL, TRIAL

__all__ = ["Mechanisms", "SandboxError", "Sandboxed", "apply_in_child", "available", "environment", "plan",
           "read_until_started", "start", "usage", "words", "works"]

#: An interpreter that sees this package and nothing else: no PyTorch, no site packages, no user's files.
_LAUNCH = "import sys; sys.path.append({root!r}); from kernelwright.judge.sandbox.launcher import main; main()"
#: Numbers of users that exist for the time of a service alone (systemd's dynamic users).
_USERS = range(61184, 65520)
_START_SECONDS, _TRIAL_SECONDS = 30.0, 40.0
_NAMESPACES = (("user", "network", "IPC", "mount", "PID"), ("network", "IPC", "mount", "PID"),
               ("user", "network", "IPC", "mount"), ("network", "IPC", "mount"), ("user", "network", "IPC"),
               ("network", "IPC"), ())


class SandboxError(Exception):
    """A worker could not be started; says why. It says nothing about a candidate."""


class Sandboxed:
    """A running worker. ``pid`` is the process above all that it starts; ``isolation`` says what is in force."""

    def __init__(self, process: subprocess.Popen[bytes], control: int, token: str, in_force: InForce) -> None:
        self._process, self._control, self._token = process, control, token
        self.in_force = in_force
        self.pid = process.pid
        self.isolation = words(in_force)

    def poll(self) -> int | None:
        """None while it runs; then its exit status, or the negative number of the signal that ended it."""
        return self._process.poll()

    def end(self) -> None:
        """End the worker and all that it started, also what left its session or its parents. May be called again."""
        if self._control >= 0:
            os.close(self._control)  # the launcher ends everything below it
            self._control = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10.0)
        if self._process.poll() is None:
            process_tree.end_members(self.pid, self._token)
            self._process.kill()
        process_tree.end_members(self.pid, self._token)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)


def start(command: list[str], folder: Path, pass_fds: tuple[int, ...], limits: Limits, environment: dict[str, str],
          stdout_fd: int, mechanisms: Mechanisms | None = None, readable_files: tuple[str, ...] = ()) -> Sandboxed:
    """Start ``command`` (an absolute path first) in ``folder``, the one place that it may write to.

    It gets ``pass_fds`` under their own numbers, an empty standard input, and ``stdout_fd`` as both outputs.
    ``mechanisms`` are those that work here unless given; ``readable_files`` may be read, too. Raises SandboxError when
    nothing could be started.
    """
    place = folder.resolve()
    (place / "tmp").mkdir(exist_ok=True)
    token = secrets.token_hex(16)
    status, status_end = os.pipe()
    control_end, control = os.pipe()
    try:
        confined = plan([*command, *readable_files], place, limits, mechanisms or available())
        order = {"plan": confined.to_json(), "command": command,
                 "pass_fds": pass_fds, "status": status_end, "control": control_end}
        root = str(Path(__file__).parents[3])
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH.format(root=root), json.dumps(order)], cwd=place,
            stdin=subprocess.DEVNULL, stdout=stdout_fd, stderr=stdout_fd, start_new_session=True,
            pass_fds=(*pass_fds, status_end, control_end), env={**environment, process_tree.TOKEN: token})
    except OSError as error:
        os.close(control)
        os.close(status)
        raise SandboxError(f"the worker's process could not be started: {error}") from error
    finally:
        os.close(status_end)
        os.close(control_end)
    worker = Sandboxed(process, control, token, InForce())
    try:
        lines = read_until_started(status)
        answer = next((line for line in lines if "error" in line), lines[0] if lines else None)
        if answer is None or "error" in answer:
            reason = answer["error"] if answer else "it said nothing before it ended, or in time"
            raise SandboxError(f"the worker's process could not be started: {reason}")
    except BaseException:
        worker.end()
        raise
    finally:
        os.close(status)
    worker.in_force = InForce(**lines[0])
    worker.isolation = words(worker.in_force)
    return worker


def plan(command: list[str], folder: Path, limits: Limits, mechanisms: Mechanisms) -> Plan:
    """The confinement of a worker that runs ``command`` in ``folder``; for `start` and for `apply_in_child`."""
    return Plan(str(folder), readable(command), devices(), limits.file_bytes, limits.processes, mechanisms,
                protected_processes(), _USERS.start + secrets.randbelow(len(_USERS)))


@functools.cache
def available(cuda: bool = False) -> Mechanisms:
    """The strongest mechanisms under which a process works on this machine, with ``cuda`` one that uses the GPU.

    Found by trial, once per process (a fraction of a second; with CUDA a few seconds where the first trial fails).
    """
    found = next((candidate for candidate in _strongest_first() if works(candidate, cuda)), None)
    if found is None:
        return available() if cuda else Mechanisms()
    if not (found.landlock or found.other_user or "user" in found.namespaces or os.geteuid() == 0):
        with contextlib.suppress(OSError):  # nothing else keeps a process of the same user from this one's memory
            prctl(PR_SET_DUMPABLE, 0)
    return found


def words(in_force: InForce) -> str:
    """What is in force, as one line."""
    facts = []
    if in_force.namespaces:
        facts.append(f"own {_listed(in_force.namespaces)} namespace{'s' if len(in_force.namespaces) > 1 else ''}")
    if in_force.landlock:
        also = ", no signals to others" if in_force.landlock_signals else ""
        facts.append(f"files: reads the system's and its own, writes its own (landlock {in_force.landlock}){also}")
    elif in_force.read_only_mounts:
        facts.append("read-only file system but for its own folder")
    if in_force.seccomp:
        facts.append("no sockets but local ones, no tracing, no mounts (seccomp)")
    if in_force.other_user:
        facts.append("a user that owns nothing else")
    if in_force.no_capabilities:
        facts.append("no capabilities")
    facts.append("limits on memory, processes, output and file size")
    missing = []
    if "network" not in in_force.namespaces and not in_force.seccomp:
        missing.append("the network")
    if not in_force.landlock:
        whose = "files open to everybody" if in_force.other_user else "files"
        missing.append(f"reading {whose}" if in_force.read_only_mounts else f"reading and writing {whose}")
    if not (in_force.other_user or "PID" in in_force.namespaces or in_force.landlock_signals):
        missing.append("signals beyond the judge's own processes" if in_force.seccomp else "signals")
    apart = in_force.landlock or in_force.other_user or "user" in in_force.namespaces
    if not (apart or (in_force.root and in_force.no_capabilities)):
        missing.append("the memory of other processes")
    if missing:
        facts.append(f"NOT kept from it: {_listed(missing)}{' (as root)' if in_force.root else ''}")
    return "; ".join(facts)


def _strongest_first() -> Iterator[Mechanisms]:
    files, calls = landlock.version() > 0, seccomp.supported()
    if sys.platform == "linux":
        if not files and os.geteuid() == 0:  # then files are kept from it as from any user, and so is the judge
            for namespaces in _NAMESPACES:
                if "user" not in namespaces:
                    yield Mechanisms(namespaces, False, calls, other_user=True)
        for namespaces in _NAMESPACES:
            yield Mechanisms(namespaces, files, calls)
        for with_files, with_calls in ((files, False), (False, calls), (False, False)):
            yield Mechanisms(_NAMESPACES[0], with_files, with_calls)
            yield Mechanisms((), with_files, with_calls)


@functools.cache
def works(mechanisms: Mechanisms, cuda: bool = False) -> bool:
    """Whether a process starts under these, with all of them in force, and can use what a candidate needs."""
    with tempfile.TemporaryDirectory(prefix="kernelwright_") as name, open(os.devnull, "w") as nowhere:
        folder = Path(name)
        command = [sys.executable, "-I", "-S", "-c", TRIAL + (CUDA_TRIAL if cuda else "")]
        try:
            worker = start(command, folder, (), Limits(), environment(folder), nowhere.fileno(), mechanisms)
        except SandboxError:
            return False
        try:
            deadline = time.monotonic() + _TRIAL_SECONDS
            while worker.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            found = worker.in_force
            return worker.poll() == 0 and mechanisms == Mechanisms(
                tuple(found.namespaces), found.landlock > 0, found.seccomp, found.other_user)
        finally:
            worker.end()


def read_until_started(status: int) -> list[dict]:
    """Lines that the starting processes wrote, read until the command runs (which closes the pipe), or time is up."""
    deadline = time.monotonic() + _START_SECONDS
    text = b""
    while (left := deadline - time.monotonic()) > 0 and select.select([status], [], [], left)[0]:
        if not (part := os.read(status, 65536)):
            return [json.loads(line) for line in text.splitlines()]
        text += part
    return []


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
