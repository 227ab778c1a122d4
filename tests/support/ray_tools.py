"""A Ray cluster on this machine, whose actors find the work of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from places import ROOT, TESTS


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray, connected to a cluster of one node."""
    ray = pytest.importorskip("ray", reason="Ray is an optional extra")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS / 'support'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()
