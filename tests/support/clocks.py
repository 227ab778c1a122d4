"""No clock decides about kernels: in the tests' own process (``conftest``), and in those that tests start."""

from __future__ import annotations

import pytest

#: Seconds after which a process or thread that a test waits for hangs, on however busy a machine.
PATIENCE = 1200.0
#: Rounds of times that decide nothing.
_ROUNDS = 25
#: What a text for ``python -c`` begins with, so that what it optimizes has kernels on a busy machine, too.
CLOCKS_DROP_NOTHING = f"""
import sys
sys.path.insert(0, {__file__.rpartition("/")[0]!r})
import clocks
clocks.drop_nothing()
"""


def drop_nothing() -> pytest.MonkeyPatch:
    """No program and no kernel goes back to PyTorch for what it takes, and no clock looks whether the machine is busy.
    So few rounds do for times, and caches need not be cold. Until the patch that is given back is undone."""
    patch = pytest.MonkeyPatch()
    patch.setattr("kernelwright.processors.waits", dict)
    patch.setattr("kernelwright.selection.is_slower", lambda timing: False)
    patch.setattr("kernelwright.training.loses", lambda entries: False)
    patch.setattr("kernelwright.tuned.losing_regions", lambda plan, times, *, clearly=False: {})
    patch.setattr("kernelwright.timing.rounds.MOST_ROUNDS", _ROUNDS)
    patch.setattr("kernelwright.timing.clock.flush_bytes", lambda: 4096)
    patch.setattr("kernelwright.judge.clock.timing.flush_bytes", lambda: 1 << 20)
    return patch
