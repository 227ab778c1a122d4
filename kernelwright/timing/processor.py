"""What the kernel says of a process's time on the processors: nobody but the kernel can change it.

A clock beside a call cannot tell a slow call from a busy machine. The scheduler can: it counts, for each thread, how
long it stood ready to run while others had the processors. Threads of OpenMP are threads like all others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
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
        with contextlib.suppress(OSError, ValueError, IndexError), open(_PROC / str(number) / "stat") as stream:
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
