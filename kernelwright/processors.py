"""How many processors this process may use, and its end and that of the processes that it has started."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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
