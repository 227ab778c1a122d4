"""What is said while the work is done: in lines, on a terminal, and from within loops."""

from __future__ import annotations

import io
import re
import sys

import pytest
import torch

import kernelwright
from kernelwright.progress import (
    LineProgress,
    Progress,
    RichProgress,
    about_left,
    counted,
    counting,
    doing,
    make_progress,
    time_in_words,
)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def seen(terminal: Terminal) -> list[str]:
    """The lines that were drawn, without what moves the cursor and colours."""
    return [" ".join(line.split()) for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "",
                                                                           terminal.getvalue())) if line.strip()]


def test_lines_have_the_stage_and_what_it_is_of() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    with progress.stage("capture"), progress.stage("verify", "inference"):
        progress.say("half")
        progress.count(1, 2)  # no line for each
    assert [line.partition("] ")[2] for line in stream.getvalue().splitlines()] == [
        "capture", "verify: inference", "verify: half"]


def test_a_terminal_shows_parts_and_what_is_left_now(terminal: Terminal) -> None:
    progress = make_progress(stream=terminal)
    assert isinstance(progress, RichProgress)
    left = iter(range(90, 0, -1))
    progress.left = lambda: next(left)
    with progress.stage("verify", "inference"):
        progress.bar.refresh()
        progress.count(2, 5)
        progress.bar.refresh()
        progress.say("a [bold] line")
        progress.bar.refresh()
    shown = seen(terminal)
    assert any("verify" in line and line.endswith("inference") and " of " not in line for line in shown)
    assert any("2 of 5 inference" in line and "s left" in line for line in shown)
    assert any("2 of 5 a [bold] line" in line for line in shown) and all(len(line) <= 60 for line in shown)
    assert len({found for line in shown for found in re.findall(r"(\d+) s left", line)}) > 1, "it stands still"


def test_a_terminal_shows_what_processes_are_at(terminal: Terminal) -> None:
    progress = make_progress(stream=terminal)
    progress.working("2_softmax: build", 1, 3)
    progress.bar.refresh()
    progress.say("[2/3] 2_softmax: verified")
    progress.working("3_norm: time", 2, 3)
    progress.bar.refresh()
    progress.close()
    shown = seen(terminal)
    assert any("1 of 3 2_softmax: build" in line for line in shown) and "[2/3] 2_softmax: verified" in shown
    assert any("2 of 3 3_norm: time" in line for line in shown)


def test_loops_speak_to_the_stage_that_runs() -> None:
    class Told(Progress):
        def __init__(self) -> None:
            self.told: list[object] = []

        def say(self, text: str) -> None:
            self.told.append(text)

        def count(self, done: int, total: int) -> None:
            self.told.append((done, total))

    counted(1, 2)
    doing("nothing listens")
    outer, inner = Told(), Told()
    with counting(outer):
        counted(0, 2)
        with pytest.raises(KeyError), counting(inner):
            doing("inside")
            raise KeyError
        counted(1, 2)
    counted(2, 2)
    assert outer.told == [(0, 2), (1, 2)] and inner.told == ["inside"]


def test_times_in_words() -> None:
    assert [time_in_words(s) for s in (0.0, 89.0, 90.0, 5400.0)] == ["0 s", "89 s", "2 min", "1.5 h"]
    assert about_left(10.0, 0, 5) == "" and about_left(10.0, 2, 4) == "about 20 s left"


def explained(**options: bool) -> None:
    kernelwright.explain(torch.nn.GELU(), inputs=(torch.randn(8, 16),), target="cpp", **options)


def test_python_tells_whoever_looks(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal and in a notebook, unless it is asked to be quiet; a program's logs stay as they are."""
    monkeypatch.setattr("sys.stderr", terminal)
    explained(quiet=True)
    assert terminal.getvalue() == ""
    explained()
    assert any("capture" in line for line in seen(terminal))
    logged = io.StringIO()
    monkeypatch.setattr("sys.stderr", logged)
    explained()
    assert logged.getvalue() == ""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    explained()
    assert "capture: " in logged.getvalue()
