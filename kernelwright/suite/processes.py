"""Processes of workers: started in sessions of their own, stopped, watched, and ended with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

#: In the environment of every worker and of all that it starts, also of what leaves its session.
TOKEN = "KERNELWRIGHT_SUITE_WORKER"
_PROC = Path("/proc")


def sessions() -> dict[int, list[int]]:
    """Process ids by session id, for every process that can be seen; empty where there is no /proc."""
    found: dict[int, list[int]] = {}
    for process in _processes():
        if fields := _status(process):
            found.setdefault(int(fields[3]), []).append(process)
    return found


def family(leader: int) -> list[int]:
    """The processes of a leader's session, and all that descend from one of them, whatever session they are in."""
    children: dict[int, list[int]] = {}
    found = {leader}
    for process in _processes():
        if fields := _status(process):
            children.setdefault(int(fields[1]), []).append(process)
            if int(fields[3]) == leader:
                found.add(process)
    waiting = list(found)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return sorted(found)


def state(process: int) -> str:
    """The letter of /proc: R running, S sleeping, D in the kernel, T stopped, Z ended; "" where there is none."""
    fields = _status(process)
    return fields[0] if fields else ""


def processor_seconds(processes: Iterable[int]) -> float:
    """Processor time that ``processes``, and the children that they have waited for, have used so far."""
    ticks = sum(int(field) for process in processes for field in _status(process)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(processes: Iterable[int]) -> int:
    """Memory that ``processes`` hold for themselves: resident, without mapped files."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            for line in (_PROC / str(process) / "status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def send(process: int, number: signal.Signals, *, group: bool = False) -> None:
    """Send a signal to a process, or to its whole group; what has ended gets none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(process, number)


def wait_until_stopped(processes: Iterable[int], limit_seconds: float) -> bool:
    """Wait until every process is stopped or has ended. Inside the kernel (state D) a signal waits, so not for ever."""
    deadline = time.monotonic() + limit_seconds
    waiting = list(processes)
    while waiting := [process for process in waiting if state(process) not in ("T", "t", "Z", "X", "")]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def end_session(leader: int, token: str) -> None:
    """End every process of a session, all that descends from it (stopped ones, too, which would not hear that it has
    ended), and those that carry ``token`` in their environment."""
    deadline = time.monotonic() + 5.0
    descended = {(process, _begun(process)) for process in family(leader)}
    while True:
        send(leader, signal.SIGKILL, group=True)
        found = {*sessions().get(leader, ()), *_carrying(token),
                 *(process for process, begun in descended if _begun(process) == begun)}
        left = [p for p in found if state(p) not in ("Z", "X", "")]
        for process in left:
            send(process, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return
        time.sleep(0.002)


def _begun(process: int) -> str:
    """When a process began, which no later one of its number did; "" where there is none."""
    fields = _status(process)
    return fields[19] if fields else ""


def _carrying(token: str) -> list[int]:
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for process in _processes():
        with contextlib.suppress(OSError):
            if wanted in (_PROC / str(process) / "environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def available_bytes() -> int | None:
    """Bytes that can still be allocated: MemAvailable, less where a control group allows less. None: unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
            limits.append(max(0, int(limit) - used))
    return min(limits) if limits else None


def ended_for_memory() -> int:
    """How many processes the system has ended because memory ran out, so far; 0 where it does not say."""
    count = 0
    for file in (_PROC / "vmstat", Path("/sys/fs/cgroup/memory.events")):
        with contextlib.suppress(OSError, ValueError):
            count += sum(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("oom_kill "))
    return count


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]
    except OSError:
        return []


def _status(process: int) -> list[str]:
    """Fields of /proc/PID/stat from the third, the state, on."""
    try:
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
