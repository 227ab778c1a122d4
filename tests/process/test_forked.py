"""Calls in copies of a process: their results, by name, whatever becomes of some of them."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest
from clocks import PATIENCE

from kernelwright.forked import Forked


def test_copies_hand_back_what_they_found():
    """Also more than a pipe holds, of several copies; nothing of a call that raises, or of one that ends its copy."""
    large = "x" * (1 << 20)
    calls = {f"n{number}": partial(lambda given: (os.getpid(), given), large + str(number)) for number in range(6)}
    found = dict(Forked({**calls, "raises": lambda: 1 // 0, "cannot be sent": lambda: (lambda: 0)}, 3))
    assert {name: given for name, (_, given) in found.items()} == {f"n{i}": large + str(i) for i in range(6)}
    assert len({pid for pid, _ in found.values()} - {os.getpid()}) == 3
    assert dict(Forked({"a": lambda: 1, "ends": lambda: os._exit(3), "b": lambda: 2}, 1)) == {"a": 1}
    assert dict(Forked({}, 4)) == {}


def test_what_is_stopped_ends():
    """At once, however long a call takes; what was sent before may be read."""
    forked = Forked({"first": lambda: 1, "long": lambda: time.sleep(600)}, 1)
    results = iter(forked)
    assert next(results) == ("first", 1)
    forked.stop()
    assert list(results) == []
    assert not any(copy.is_alive() for copy in forked._copies)


def test_a_copy_ends_when_nobody_reads(tmp_path):
    """Of a process that was killed, for example."""
    mark = tmp_path / "mark"

    def call() -> str:
        mark.write_text(str(os.getpid()))
        return "x" * (1 << 20)

    forked = Forked({"first": call, "other": call, "second": lambda: pytest.fail("it went on")}, 2)
    for connection in forked._open:
        connection.close()
    for copy in forked._copies:
        copy.join(PATIENCE)
    assert mark.exists() and not any(copy.is_alive() for copy in forked._copies)
