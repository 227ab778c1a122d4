"""What the kernel says of a process's time on the processors: nobody but the kernel can change it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


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
    paths = [f"{_PROC}/{number}/task" for number in processes]
    files = [f"{_PROC}/{os.getpid()}/task/{os.getpid()}/schedstat"] if own else []
    for path in paths:
        with contextlib.suppress(OSError, ValueError, IndexError), open(path.replace("/task", "/stat")) as stream:
            faults += int(stream.read().rpartition(")")[2].split()[9])
        with contextlib.suppress(OSError):
            files += [f"{path}/{thread}/schedstat" for thread in os.listdir(path)]
    for number, file in enumerate(files):
        with contextlib.suppress(OSError, ValueError):
            with open(file) as stream:
                first, second, _ = stream.read().split()
            ran += int(first) if not own or number else 0
            waited += int(second)
    return Scheduled(ran * 1e-9, waited * 1e-9, faults)
