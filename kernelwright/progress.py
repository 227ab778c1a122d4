"""What the pipeline says while it works: silence, plain lines, or a line that moves on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO

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
    def stage(self, name: str, of: str = "") -> Iterator[None]:
        """The block does the work of stage ``name``, one of ``STAGES``; ``of``: which part of it. Stages may be
        nested."""
        yield

    def say(self, text: str) -> None:
        """Show one line of detail within the current stage."""

    def count(self, done: int, total: int) -> None:
        """Show that so many of all parts of the current stage are done."""

    def working(self, text: str, done: int, total: int) -> None:
        """Show what processes are at that do the work of no stage, of all parts of which so many are done."""

    def close(self) -> None:
        """Take away whatever still moves on the terminal. May be called more than once."""


class LineProgress(Progress):
    """Plain lines, each with the seconds since the start and what is left of the budget, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.began = time.perf_counter()
        self.names: list[str] = []

    @contextmanager
    def stage(self, name: str, of: str = "") -> Iterator[None]:
        """Write the stage's name when it starts."""
        self.names.append(name)
        self._write(f"{name}: {of}" if of else name)
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
    """A spinner with the stage, the seconds that it has taken so far, what is left of the budget, a bar of its parts
    where they are counted, and its newest detail.

    A stage that took a second or more leaves one line behind. ``stream`` is a terminal.
    """

    #: Seconds from which a finished stage leaves a line.
    WORTH_A_LINE = 1.0
    #: Drawn so often a second: who measures beside it should not notice.
    REFRESHED = 5

    def __init__(self, stream: TextIO | None = None, colour: bool = True) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.table import Column
        from rich.text import Text

        progress = self

        class Left(ProgressColumn):
            """What is left of the budget now."""

            def render(self, task: Any) -> Text:
                return Text(progress.remaining(), style="dim")

        class Counted(BarColumn):
            """A bar where the parts of the work are counted."""

            def render(self, task: Any) -> Any:
                return Text("") if task.total is None else super().render(task)

        console = Console(file=stream if stream is not None else sys.stderr, no_color=not colour, highlight=False)
        # No markup anywhere: square brackets in a user's line are only text.
        detail = TextColumn("{task.fields[detail]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        self.bar: Any = Bar(SpinnerColumn(), TextColumn("{task.description:<9}", markup=False), TimeElapsedColumn(),
                            Left(), Counted(bar_width=8), TextColumn("{task.fields[parts]}", markup=False), detail,
                            console=console, transient=True, expand=True, refresh_per_second=self.REFRESHED)
        self.tasks: list[Any] = []
        self.others: Any = None

    @contextmanager
    def stage(self, name: str, of: str = "") -> Iterator[None]:
        """Show the stage while the block runs."""
        started = time.perf_counter()
        self.bar.start()
        task = self.bar.add_task(name, total=None, detail=of, parts="")
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
            if not self.tasks and self.others is None:
                self.bar.stop()

    def say(self, text: str) -> None:
        """Show ``text`` beside the stage; it stays until the next one."""
        if self.tasks:
            self.bar.update(self.tasks[-1], detail=text)
        else:
            self.bar.console.print(text, markup=False)

    def count(self, done: int, total: int) -> None:
        """Show the bar of the stage."""
        if self.tasks:
            self.bar.update(self.tasks[-1], completed=done, total=total, parts=f"{done} of {total}")

    def working(self, text: str, done: int, total: int) -> None:
        """Show a line of its own, below those that are said."""
        if self.others is None:
            self.bar.start()
            self.others = self.bar.add_task("at work", total=total, detail="", parts="")
        self.bar.update(self.others, completed=done, total=total, detail=text, parts=f"{done} of {total}")

    def close(self) -> None:
        """Stop the spinner and clear its line."""
        self.bar.stop()


class Listener(Protocol):
    """Who hears what loops say of their stage."""

    def say(self, text: str) -> None:
        """One line of detail."""

    def count(self, done: int, total: int) -> None:
        """So many of all parts are done."""


#: The innermost last.
_COUNTING: list[Listener] = []


@contextmanager
def counting(listener: Listener) -> Iterator[None]:
    """Within the block `counted` and `doing` speak to this listener."""
    _COUNTING.append(listener)
    try:
        yield
    finally:
        _COUNTING.pop()


def counted(done: int, total: int) -> None:
    """Say how many parts of the running stage are done, from wherever they are counted."""
    if _COUNTING:
        _COUNTING[-1].count(done, total)


def doing(text: str) -> None:
    """Say what the running stage is at, from wherever that is known."""
    if _COUNTING:
        _COUNTING[-1].say(text)


def about_left(seconds: float, done: int, left: int) -> str:
    """How long what is left may take, by the ``seconds`` that what is done took; "" where nothing is done yet."""
    return f"about {time_in_words(seconds / done * left)} left" if done else ""


def time_in_words(seconds: float) -> str:
    """Seconds, minutes or hours."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else \
        f"{seconds / 3600:.1f} h"


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


def progress_of_python(quiet: bool = False) -> Progress:
    """The progress of a call from Python: on a terminal and in a notebook, where somebody looks; silent elsewhere."""
    looked_at = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    return make_progress(quiet) if looked_at else Progress()
