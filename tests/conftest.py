"""Fixtures that several modules ask for."""

from __future__ import annotations

import pytest


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated device has two multiprocessors, so that blocks have several tiles, one after the other."""
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_PROCESSORS", "2")
