"""How many processors this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """The processors that this process, and what it starts, may use: at least one."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
