"""How many processors this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """The processors that this process, and what it starts, may use: at least one."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


#: The variable that says how many of them are a process's share, where several work side by side.
SHARE = "KERNELWRIGHT_PROCESSORS"


def share_of_processors() -> int:
    """As many of `processors` as this process should keep busy: all, unless it was given a share of them."""
    given = os.environ.get(SHARE, "")
    return max(1, min(processors(), int(given))) if given.isdecimal() else processors()
