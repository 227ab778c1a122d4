"""Processes that share a device's memory: the scheduler lets in whom there is room for, and all of them end."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import TESTS

from kernelwright.suite.device_queue import DeviceQueue
from kernelwright.suite.jobs import Job
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.scheduler import Scheduler

#: Two of these have room together, and wait for each other in there.
PAIR = """
device_lock.room_on_device(40, 100)
note("in")
until = time.monotonic() + 60
while not (here / "{other}.in").exists():
    assert time.monotonic() < until
    time.sleep(0.01)
note("out")
"""
ALL = """
device_lock.room_on_device(30, 100)
note("small")
device_lock.room_on_device(None, 100)
note("in")
note("out")
"""
DIES = """
import os
device_lock.room_on_device(None, 100)
note("in")
os._exit(3)
"""
HEAD = """
from pathlib import Path
here = Path(task["path"]).parent
said = note
def note(what):
    said(what)
    (here / (Path(task["path"]).stem + "." + what)).touch()
"""


def test_rooms_on_a_simulated_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support"))
    texts = {"a": PAIR.format(other="b"), "b": PAIR.format(other="a"), "dies": DIES, "all": ALL}
    jobs = []
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        jobs.append(Job(name, "", str(tmp_path / f"{name}.py"), "", 1))
    options = SuiteOptions(output=tmp_path / "out", work="suite_work:run", devices=("cpu",), limit=120.0)
    options.output.mkdir()
    states: dict[str, str] = {}
    queue = DeviceQueue("a device", {"CUDA_VISIBLE_DEVICES": ""}, stops_groups=False)
    (tmp_path / "scratch").mkdir()
    scheduler = Scheduler([queue], options, options.output, tmp_path / "scratch", 3,
                          lambda record: states.update({record["problem"]: record["state"]}))
    try:
        scheduler.add(jobs)
        while scheduler.open:
            scheduler.step()
    finally:
        scheduler.close()
    assert states == {"a": "verified", "b": "verified", "dies": "crashed", "all": "verified"}
    assert not queue.rooms.held and not queue.rooms.asking
    lines = sorted((tmp_path / "journal.txt").read_text().splitlines(), key=lambda line: float(line.split()[0]))
    order = [tuple(line.split(" ")[1:]) for line in lines]
    inside: set[str] = set()
    for who, what in order:
        if what == "in":
            assert not inside or {who, *inside} == {"a", "b"}, order
            inside.add(who)
        if what == "out" or who == "dies":
            inside.discard(who)
