"""All that belongs to one process: counted, measured and ended, whatever sessions and parents it has by now."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: In the environment of a worker and of all that it starts.
TOKEN = "KERNELWRIGHT_JUDGE_WORKER"
#: How often processes are looked for that were started while others were stopped.
_TURNS = 20
_PROC = Path("/proc")
#: In the flags of /proc/PID/stat: it is about to end, whoever or whatever decided that (PF_EXITING).
_EXITING = 4
_CHILDREN = Path("/proc/thread-self/children")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat: its number, the letter of its state, parent, session, number of threads, and the
    moment of its start in the kernel's ticks, by which it is told from a later one of its number."""

    number: int
    state: str
    parent: int
    session: int
    threads: int
    started: int
    exiting: bool

    @property
    def ended(self) -> bool:
        """Whether only its exit status is left of it."""
        return self.state in ("Z", "X")


def processes() -> dict[int, Process]:
    """Every process that can be seen, by its number; empty where there is no /proc."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROC):
            if name.isdecimal() and (process := _process(int(name))) is not None:
                found[int(name)] = process
    return found


def _process(number: int) -> Process | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
        return Process(number, fields[0], int(fields[1]), int(fields[3]), int(fields[17]), int(fields[19]),
                       bool(int(fields[6]) & _EXITING))
    return None


def innermost(leader: int) -> Process | None:
    """The last of the processes under ``leader``, each of which has one child; None where it cannot be seen."""
    found = _descendants(leader) if _CHILDREN.exists() else [process.number for process in members(leader)]
    return _process([*found][-1]) if found else None


def runs(process: Process) -> bool:
    """Whether ``process`` still runs: is neither ended nor about to end."""
    now = _process(process.number)
    return now is not None and now.started == process.started and not now.ended and not now.exiting


def members(leader: int, token: str | None = None) -> list[Process]:
    """The processes under ``leader``, without itself: descendants, those in its session or in a descendant's, and those
    that carry ``token`` in their environment."""
    known = processes()
    children: dict[int, list[int]] = {}
    sessions: dict[int, list[int]] = {}
    for process in known.values():
        children.setdefault(process.parent, []).append(process.number)
        sessions.setdefault(process.session, []).append(process.number)
    found: set[int] = set()
    waiting = [leader]
    if token is not None:
        wanted = f"{TOKEN}={token}".encode()
        waiting += [number for number in known if wanted in _environment(number)]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += children.get(number, ())
            waiting += sessions.get(number, ())  # where it leads a session
    found.discard(leader)
    return [known[number] for number in sorted(found) if number in known and not known[number].ended]


def usage(leader: int) -> tuple[int, int, int]:
    """Processes, threads, and resident bytes of all under ``leader`` (itself left out).

    Bytes are those that a process holds for itself or shares by mapping (anonymous and shared memory, no files'
    pages). Where the kernel hides them, and after the end, they are zero. It looks at the leader's own descendants
    alone (what leaves its parents comes back below a launcher), so that it costs little while something is timed.
    """
    found = _descendants(leader) if _CHILDREN.exists() else {p.number: p.threads for p in members(leader)}
    return len(found), sum(found.values()), resident_bytes(found)


def _descendants(leader: int) -> dict[int, int]:
    """Threads by the number of each process below ``leader``, from the lists of children that the kernel keeps."""
    found: dict[int, int] = {}
    waiting = [leader]
    while waiting:
        tasks = _PROC / str(waiting.pop()) / "task"
        with contextlib.suppress(OSError):  # it has just ended
            for task in os.listdir(tasks):
                with contextlib.suppress(OSError):
                    for child in map(int, (tasks / task / "children").read_text().split()):
                        with contextlib.suppress(OSError):
                            found[child] = len(os.listdir(_PROC / str(child) / "task"))
                            waiting.append(child)
    return found


def resident_bytes(numbers: Iterable[int]) -> int:
    """Anonymous and shared memory that these processes hold, in bytes."""
    total = 0
    for number in numbers:
        with contextlib.suppress(OSError, ValueError):
            for line in (_PROC / str(number) / "status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def signal_members(leader: int, wanted: signal.Signals) -> None:
    """Send ``wanted`` (SIGSTOP or SIGCONT) to every process under ``leader``, also to those that are started meanwhile.

    The leader is left out: a launcher ends what is below it when the judge is gone, also what is stopped.
    """
    reached: set[int] = set()
    for _ in range(_TURNS):
        found = _descendants(leader) if _CHILDREN.exists() else [p.number for p in members(leader)]
        fresh = [number for number in found if number not in reached]
        if not fresh:
            return
        for number in fresh:
            _send(number, wanted)
        reached.update(fresh)


def end_members(leader: int, token: str | None = None, limit_seconds: float = 5.0) -> bool:
    """End every process under ``leader``; whether none is left.

    They are stopped first, all of them, since killing one at a time never catches up with those that keep forking.
    """
    deadline = time.monotonic() + limit_seconds
    while left := members(leader, token):
        stopped: set[int] = set()
        while fresh := [p.number for p in left if p.number not in stopped]:
            for number in fresh:
                _send(number, signal.SIGSTOP)
            stopped.update(fresh)
            if time.monotonic() > deadline:
                break
            left = members(leader, token)
        for number in stopped:
            _send(number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while leader == os.getpid() and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            return not members(leader, token)
        time.sleep(0.002)
    return True


def _send(number: int, wanted: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(number, wanted)


def _environment(number: int) -> list[bytes]:
    try:
        return (_PROC / str(number) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
