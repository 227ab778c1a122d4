"""``kernelwright bench``: run every problem of a folder, keep the records, make the page."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

from kernelwright.names import natural
from kernelwright.progress import Progress, about_left
from kernelwright.suite import proposals
from kernelwright.suite.devices import find_queues, share_cores, workers_per_device
from kernelwright.suite.jobs import Job, find_jobs, longest_first
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.results import FILE, VERIFIED, Results
from kernelwright.suite.scheduler import Finished, Part, Scheduler, nobody_asks
from kernelwright.suite.scores import ORIGINAL, score_problem
from kernelwright.timing.baselines import EAGER

PAGE = "page.html"
#: Exit status of a suite in which not every problem is verified.
NOT_ALL_VERIFIED = 1


class Outcome(TypedDict):
    """What became of one problem, in the summary of a suite."""

    problem: str
    """Path below the folder of problems, without ``.py``."""
    state: str
    """As in its record."""
    seconds: float
    """Wall time from hand-out to result."""
    code: str | None
    """Of its error, if it has one."""


class Summary(TypedDict):
    """What ``bench --json`` prints; the records themselves stand in ``results``."""

    schema: int
    output: str
    """The folder of everything else."""
    results: str
    """The file of records there."""
    page: str
    """The page of scores there; of candidates of language models, the tables."""
    ran: int
    """Problems that ran in this run; the others had results."""
    seconds: float
    """Wall time of this run."""
    states: dict[str, int]
    """How many problems there are in each state."""
    problems: list[Outcome]


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What a suite did. ``records``: the newest of every problem in the output folder, in natural order."""

    folder: Path
    records: tuple[Mapping[str, Any], ...]
    ran: int
    """Problems that ran in this run; the others had results."""
    seconds: float
    proposed: bool = False
    """Whether candidates of language models were judged."""

    @property
    def exit_status(self) -> int:
        """0 if every problem is verified, else 1."""
        return 0 if all(record["state"] == VERIFIED for record in self.records) else NOT_ALL_VERIFIED

    def as_json(self) -> Summary:
        """The document of ``--json``."""
        problems: list[Outcome] = [
            {"problem": record["problem"], "state": record["state"], "seconds": record["seconds"],
             "code": (record["error"] or {}).get("code")} for record in self.records]
        page = proposals.FILE if self.proposed else PAGE
        return {"schema": 1, "output": str(self.folder), "results": FILE, "page": page, "ran": self.ran,
                "seconds": self.seconds, "states": dict(Counter(entry["state"] for entry in problems)),
                "problems": problems}


def run_suite(folder: str | Path, options: SuiteOptions | None = None, progress: Progress | None = None) -> SuiteResult:
    """Run every problem file below ``folder`` (or one file), each in its own process, and write its record.

    Raises FileMissing (KW101), NoCudaDevice (KW302), OutputFolderUnusable (KW401), NoProblems (KW601), ResultsExist
    (KW602), ResultsDiffer (KW603), RunnerMissing (KW608). What goes wrong with a problem is in its record.
    """
    options = options or SuiteOptions()
    progress = progress or Progress()
    began = time.monotonic()
    jobs = find_jobs(Path(folder), options.filters, options.output)
    run = runner_of(options)
    results = Results(options.output, resume=options.resume, force=options.force)
    try:
        missing = longest_first(results.missing(jobs, options.kept_settings()), results.seconds)
        report = _Report(progress, len(missing))

        def finished(record: dict[str, Any]) -> None:
            results.add(record)
            report(record)

        if len(missing) < len(jobs):
            progress.say(f"{len(jobs) - len(missing)} of {len(jobs)} problems have results already")
        if missing:
            run(missing, options, finished, progress)
        records = tuple(results.records[name] for name in sorted(results.records, key=natural))
    finally:
        results.close()
    if options.propose is None:
        write_page(options.output / PAGE, records)
    else:
        write_proposals(options.output / proposals.FILE, records)
    return SuiteResult(options.output, records, len(missing), time.monotonic() - began, options.propose is not None)


def run_locally(jobs: Sequence[Job], options: SuiteOptions, finished: Finished, progress: Progress,
                part: Part = nobody_asks) -> None:
    """Run ``jobs`` on this machine's devices; ``finished`` and ``part`` are those of `Scheduler`."""
    queues = find_queues(options)
    per_device = workers_per_device(options, queues)
    share_cores(options, queues, per_device)
    what = "problems" if options.judge is None else "jobs"
    progress.say(f"{len(jobs)} {what} on {', '.join(queue.name for queue in queues)}, "
                 f"{per_device} {'workers' if per_device > 1 else 'worker'} per device")
    scratch = Path(tempfile.mkdtemp(prefix="kernelwright_bench_"))
    with ended_by_signals():
        scheduler = Scheduler(queues, options, options.output.resolve(), scratch, per_device, finished, part)
        try:
            scheduler.add(jobs)
            began = time.monotonic()
            while (left := scheduler.open) > 0:
                done = len(jobs) - left
                at = ", ".join(f"{name}: {stage}" for name, stage in scheduler.stages().items())
                progress.working("; ".join(filter(None, (at, about_left(time.monotonic() - began, done, left)))),
                                 max(0, done), len(jobs))
                scheduler.step()
        finally:
            with _undisturbed():
                scheduler.close()


def write_page(file: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of the records in one step."""
    from kernelwright.suite.page import render_page

    part = file.with_name(f".{file.name}.part")
    part.write_text(render_page(records), encoding="utf-8")
    os.replace(part, file)


def write_proposals(file: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the tables of candidates in one step."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(proposals.markdown(records), encoding="utf-8")
    os.replace(part, file)


def render_text(result: SuiteResult, *, colour: bool, width: int) -> str:
    """The suite's table for a terminal, and where everything is."""
    if result.proposed:
        return (proposals.render_proposals(result.records, colour=colour, width=width)
                + f"\n\nRecords, files, runs and {proposals.FILE} are in {result.folder} ({result.ran} problems ran in "
                  f"{result.seconds:.0f} s).")
    import io

    from rich.console import Console

    from kernelwright.suite.table import render_table

    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    console.print(render_table(result.records))
    console.print(f"\nRecords, emitted files and {PAGE} are in {result.folder} "
                  f"({result.ran} problems ran in {result.seconds:.0f} s).", markup=False, soft_wrap=True)
    return stream.getvalue().rstrip("\n")


class _Report:
    """One line for each problem as it finishes."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.total = total
        self.done = 0

    def __call__(self, record: Mapping[str, Any]) -> None:
        self.done += 1
        self.progress.say(f"[{self.done}/{self.total}] {record['problem']}: {_summary(record)}, "
                          f"{record['seconds']:.0f} s ({record['stopped_seconds']:.0f} s stopped)")


def _summary(record: Mapping[str, Any]) -> str:
    if record["state"] != VERIFIED:
        return f"{record['state']} {(record['error'] or {}).get('code', '')}".rstrip()
    if record.get("propose"):
        found = proposals.score(record)
        return f"{found.right} of {found.candidates} candidates are right, {found.chosen or 'nothing'} is written"
    score = score_problem(record)
    # A file that is PyTorch's has eager's time, also where programs with kernels were timed and given up.
    speeds = [f"{speed.value:.3g}x as fast as {name}" for name, speed in score.speeds.items()
              if score.kind != ORIGINAL or (name != EAGER and speed.value < 1.0)]
    return ", ".join([VERIFIED, f"{score.replaced}/{score.operators} replaced", *speeds])


def runner_of(options: SuiteOptions) -> Callable[..., None]:
    """`run_locally`, or what does the same on a Ray cluster, which is only imported then."""
    if options.runner != "ray":
        return run_locally
    from kernelwright.suite.ray_runner import run_on_ray

    return run_on_ray


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that no process outlives it; the exit status is the usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing but SIGKILL interrupts the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
