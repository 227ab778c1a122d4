"""How many processors this process may use, how long threads waited for one, and the end of what it has started.

What is told of waiting is the kernel's: nobody else can change it. A clock beside a call cannot tell a slow call from a
busy machine. The scheduler can: it counts, for each thread, how long it stood ready to run while others had the
processors. Threads of OpenMP are threads like all others.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TASKS = Path("/proc/self/task")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def processors() -> int:
    """The processors that this process, and what it starts, may use: at least one."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


#: The variable that says how many of them are a process's share, where several work side by side.
SHARE = "KERNELWRIGHT_PROCESSORS"


def share_of_processors() -> int:
    """As many of `processors` as this process should keep busy: all, unless it was given a share of them."""
    given = os.environ.get(SHARE, "")
    return max(1, min(processors(), int(given))) if given.isdecimal() else processors()


def die_with_parent() -> None:
    """Have the system end this process when the one that started it ends, also where that is killed. On Linux alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def end_children(threads: Iterable[int | None] | None = None) -> None:
    """Ask the processes to end (SIGTERM) that threads of this one have started, by the system's numbers of these; by
    default all of its threads. Only where the system tells which processes they are, as Linux does."""
    with suppress(OSError):
        for thread in [task.name for task in _TASKS.iterdir()] if threads is None else threads:
            with suppress(OSError):
                for child in (_TASKS / str(thread) / "children").read_text().split():
                    with suppress(OSError):
                        os.kill(int(child), signal.SIGTERM)


#: A call is disturbed where one thread waited for a processor for more than this share of it, and for more than these
#: seconds: waking a thread takes some of them on a machine that does nothing else, too.
WAIT_SHARE, WAIT_SECONDS = 0.05, 2e-5


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Seconds that threads ran, seconds that they were ready to run and waited for a processor, and ``faults``: how
    often their processes waited for memory that had to be read from a disk. Threads that have ended are not in it.
    Zeros where the kernel does not tell."""

    ran: float
    waited: float
    faults: int = 0

    def since(self, earlier: Scheduled) -> Scheduled:
        """The difference; never negative."""
        return Scheduled(max(0.0, self.ran - earlier.ran), max(0.0, self.waited - earlier.waited),
                         max(0, self.faults - earlier.faults))


def scheduled(processes: Iterable[int], *, own: bool = False) -> Scheduled:
    """All threads of these processes, and (``own``) this process's main thread, which waits for them."""
    ran = waited = faults = 0
    for number in processes:
        with suppress(OSError, ValueError, IndexError), open(_PROC / str(number) / "stat") as stream:
            faults += int(stream.read().rpartition(")")[2].split()[9])
        for _, first, second in _threads(number):
            ran, waited = ran + first, waited + second
    if own and (found := _read(f"{_PROC}/{os.getpid()}/task/{os.getpid()}/schedstat")) is not None:
        waited += found[1]
    return Scheduled(ran * 1e-9, waited * 1e-9, faults)


def waits() -> dict[str, float]:
    """The seconds that each of this process's threads has waited for a processor so far, by the thread's number; empty
    where the kernel does not tell."""
    return {thread: waited * 1e-9 for thread, _, waited in _threads("self")}


def longest_wait(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The longest that one thread waited between two answers of :func:`waits`. Threads that wait at the same time hold
    up a call once, so that their sum would say too much."""
    return max((waited - before.get(thread, 0.0) for thread, waited in after.items()), default=0.0)


def is_disturbed(seconds: float, waited: float) -> bool:
    """Whether a call of so many seconds tells more of the machine than of itself. waited: of :func:`longest_wait`."""
    return waited > max(WAIT_SECONDS, WAIT_SHARE * seconds)


def _threads(process: int | str) -> Iterator[tuple[str, int, int]]:
    """Each thread's number, and the nanoseconds that it ran and waited."""
    folder = f"{_PROC}/{process}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return
    for thread in threads:
        if (found := _read(f"{folder}/{thread}/schedstat")) is not None:
            yield thread, *found


def _read(file: str) -> tuple[int, int] | None:
    """Nanoseconds that a thread ran and waited; None where there is no such thread, or nothing is told."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            ran, waited, _ = os.read(descriptor, 128).split()
        finally:
            os.close(descriptor)
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None
