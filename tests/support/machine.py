"""The machine's figures, for processes that have a cache folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


def knows_the_machine(cache: Path) -> Path:
    """A cache folder in which the processor's figures stand, so that whoever uses it measures nothing: that takes two
    processors a second."""
    from kernelwright.roofline.peaks import measured_cpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWRIGHT_CACHE", str(cache))
        measured_cpu()
    return cache
