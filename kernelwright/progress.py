"""What the pipeline says while it works: silence, plain lines, or a line that moves on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from kernelwright.settings import NO_COLOR

#: The stages in the order in which a run passes them.
STAGES = ("load", "capture", "analyse", "rewrite", "plan", "generate", "tune", "build", "verify", "time", "report",
          "fuzz", "self-test", "profile", "check")


class Progress:
    """Silent progress, and the protocol of all others.

    The pipeline wraps each stage in :meth:`stage` and gives details with :meth:`say`. Neither may fail. ``left``: how
    many seconds of the run's budget are left, where it has one. ``started``: by `time.perf_counter`, when a command
    began whose first run is still to come.
    """

    left: Callable[[], float] | None = None
    started: float | None = None

    def seconds_before(self) -> float:
        """The seconds that a command took until its first run began, such as for imports; 0 of its others."""
        started, self.started = self.started, None
        return 0.0 if started is None else time.perf_counter() - started

    def remaining(self) -> str:
        """``12 s left`` of the budget, or "" where there is none."""
        return "" if self.left is None else f"{self.left():.0f} s left"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block does the work of stage ``name``, one of ``STAGES``. Stages may be nested."""
        yield

    def say(self, text: str) -> None:
        """Show one line of detail within the current stage."""

    def close(self) -> None:
        """Take away whatever still moves on the terminal. May be called more than once."""


class LineProgress(Progress):
    """Plain lines, each with the seconds since the start and what is left of the budget, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.began = time.perf_counter()
        self.names: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Write the stage's name when it starts."""
        self.names.append(name)
        self._write(name)
        try:
            yield
        finally:
            self.names.pop()

    def say(self, text: str) -> None:
        """Write ``stage: text``."""
        self._write(f"{self.names[-1]}: {text}" if self.names else text)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed pipe or stream must not end the work
            times = f"{time.perf_counter() - self.began:7.1f} s", self.remaining()
            print(f"[{', '.join(filter(None, times))}] {text}", file=self.stream, flush=True)


class RichProgress(Progress):
    """A spinner with the stage, its newest detail, the seconds it has taken so far and what was left of the budget.

    A stage that took a second or more leaves one line behind. ``stream`` is a terminal.
    """

    #: Seconds from which a finished stage leaves a line.
    WORTH_A_LINE = 1.0

    def __init__(self, stream: TextIO | None = None, colour: bool = True) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = Console(file=stream if stream is not None else sys.stderr, no_color=not colour, highlight=False)
        # No markup anywhere: square brackets in a user's line are only text.
        detail = TextColumn("{task.fields[detail]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        left = TextColumn("{task.fields[left]}", markup=False, style="dim")
        self.bar: Any = Bar(SpinnerColumn(), TextColumn("{task.description:<9}", markup=False), TimeElapsedColumn(),
                            left, detail, console=console, transient=True, expand=True)
        self.tasks: list[Any] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show the stage while the block runs."""
        started = time.perf_counter()
        if not self.tasks:
            self.bar.start()
        task = self.bar.add_task(name, total=None, detail="", left=self.remaining())
        self.tasks.append(task)
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            detail = next((known.fields["detail"] for known in self.bar.tasks if known.id == task), "")
            self.tasks.remove(task)
            self.bar.remove_task(task)
            if seconds >= self.WORTH_A_LINE:
                self.bar.console.print(f"{name:<9} {seconds:6.1f} s  {detail}".rstrip(), style="dim", markup=False)
            if not self.tasks:
                self.bar.stop()

    def say(self, text: str) -> None:
        """Show ``text`` beside the stage; it stays until the next one."""
        if self.tasks:
            self.bar.update(self.tasks[-1], detail=text, left=self.remaining())
        else:
            self.bar.console.print(text, markup=False)

    def close(self) -> None:
        """Stop the spinner and clear its line."""
        self.bar.stop()


def make_progress(quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """The progress that suits ``stream`` (stderr by default): silent, moving, or plain lines.

    On a terminal NO_COLOR only takes the colours away; a terminal that cannot move its cursor
    (TERM=dumb) gets plain lines.
    """
    stream = stream if stream is not None else sys.stderr
    if quiet:
        return Progress()
    if not stream.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return LineProgress(stream)
    return RichProgress(stream, colour=NO_COLOR.read() is None)
