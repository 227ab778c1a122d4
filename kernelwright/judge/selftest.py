"""Controls in every run: known right, wrong, stale, replayed and asynchronous candidates, and a null kernel for the
clock.

A judge that cannot tell these apart on this machine, today, tells nothing: where one misbehaves, every verdict of the
run is JUDGE-UNFIT. The controls are candidates like any others, in processes of their own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.device_lock import locked_device
from kernelwright.judge.clock.timed import TimedProblem
from kernelwright.judge.clock.timed_worker import TimedWorker
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.link import CandidateRaised
from kernelwright.judge.worker.process import Worker, WorkerFailure
from kernelwright.judge.worker.protocol import Broken
from kernelwright.judge.worker.remote import RemoteCandidate
from kernelwright.problem import Problem
from kernelwright.problem.load import load_problem
from kernelwright.report.units import seconds as say
from kernelwright.timing.statistics import quantile
from kernelwright.verify.certificate import Plan, certify
from kernelwright.verify.plain import plain
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import float64_copy

CONTROLS = Path(__file__).parent / "controls"
#: The controls' calls overwrite no large caches: only the order of things is tested, not how long they take.
FLUSH_BYTES = 1 << 20
#: A call that does nothing takes less than this on any machine, by either clock.
NOTHING_SECONDS = 1e-3
#: How often a machine may disturb a clock, or a control, before it counts as unfit.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Whether the judge is fit, and a sentence on each control that misbehaved; ``seconds`` is the wall time.

    ``calibration``: seconds of the null kernel by the worker's clock and by the judge's.
    """

    passed: bool
    sentences: tuple[str, ...]
    seconds: float = 0.0
    calibration: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """One line for people."""
        if not self.passed:
            return " ".join(self.sentences)
        shown = f"; a call that does nothing takes {say(self.calibration[0])}" if self.calibration else ""
        return f"right passes; wrong, stale, replayed and asynchronous are refused{shown}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**plain(self), "words": self.words}


def self_test(device: torch.device, limits: Limits | None = None, controls: Path = CONTROLS) -> SelfTest:
    """Judge the controls in ``controls`` on ``device``. Never raises for what a control does."""
    started = time.monotonic()
    problem = load_problem(controls / "problem.py", device=device)
    calibration: list[tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        start = lambda name: _started(stack, controls / f"{name}.py", problem, limits)  # noqa: E731
        names = ("right", "wrong", "stale", "replay", "late", "nothing")
        # Starting is mostly waiting for other processes.
        with ThreadPoolExecutor(len(names)) as pool:
            begun = list(pool.map(start, names))
        sentences = [text for text in begun if isinstance(text, str)]
        if not sentences:
            remotes = dict(zip(names, begun, strict=True))
            checks: list[Callable[[], str]] = [
                lambda: _right(remotes["right"], problem), lambda: _wrong(remotes["wrong"], problem),
                lambda: _timed(remotes["stale"], problem, "CHEAT-STALE"),
                lambda: _timed(remotes["replay"], problem, "CHEAT-REPLAY"),
                lambda: _timed(remotes["late"], problem, "CHEAT-ASYNC"),
                lambda: _nothing(remotes["nothing"], remotes["right"], problem, calibration)]
            with locked_device():  # clocks are tried
                sentences = [text for check in checks if (text := _said(check))]
    return SelfTest(not sentences, tuple(sentences), time.monotonic() - started,
                    calibration[-1] if calibration else None)


def _started(stack: contextlib.ExitStack, path: Path, problem: Problem, limits: Limits | None
             ) -> tuple[RemoteCandidate, Worker] | str:
    try:
        worker = Worker(path, problem.device, limits)
        stack.enter_context(worker)
        return RemoteCandidate(worker, problem, 0, True), worker
    except (WorkerFailure, CandidateRaised) as failure:
        return f"The control {path.stem} does not start: {failure}"


def _said(check: Callable[[], str]) -> str:
    """What a check finds wrong; a control that ends otherwise is wrong as well."""
    try:
        return check()
    except (WorkerFailure, CandidateRaised, Broken) as failure:
        return f"A control's process failed: {failure}"


def _passes(remote: RemoteCandidate, problem: Problem) -> bool:
    return certify(lambda: problem.make_model(0), lambda: remote, problem.make_inputs,
                   plan=Plan(trials=(TrialPlan(1), TrialPlan(2, redrawn_parameters=True)), repeats=1)).passed


def _right(control: Any, problem: Problem) -> str:
    remote, worker = control
    if not _passes(remote, problem):
        return "A candidate that is right was refused."
    found = _calls(worker, problem)
    if found.refusal is not None:
        return f"A candidate that is right was refused when timed: {found.refusal.finding.sentence}"
    return ""


def _wrong(control: Any, problem: Problem) -> str:
    return "A candidate with one wrong element passed." if _passes(control[0], problem) else ""


def _timed(control: Any, problem: Problem, verdict: str) -> str:
    """A control that only timed calls can tell: refused whenever it is timed, and for its own reason.

    A busy machine can hide the reason: what a control finds in its memory, say. So there are some attempts at that.
    """
    name, other = control[1].candidate.stem, ""
    for _ in range(ATTEMPTS):
        found = _calls(control[1], problem).refusal
        if found is None:
            return f"The control {name} passed the timed calls."
        if found.verdict == verdict:
            return ""
        other = f"{found.verdict}, {found.finding.sentence}"
    return f"The control {name} was refused for another reason: {other}"


def _problem(problem: Problem) -> TimedProblem:
    model = problem.make_model(0)
    return TimedProblem(problem, model, float64_copy(model))


def _calls(worker: Worker, problem: Problem, check: bool = True) -> TimedWorker:
    """A round of timed calls, checked."""
    timed = _problem(problem)
    timed_worker = TimedWorker(worker.candidate.stem, worker, True)
    timed_worker.run(timed, timed.make_round(2, [(True, 3), (False, 9)]), flush=1, flush_bytes=FLUSH_BYTES, check=check)
    return timed_worker


def _nothing(control: Any, clean: Any, problem: Problem, calibration: list[tuple[float, float]]) -> str:
    """Both clocks on a candidate that does nothing, less what is around its calls: about zero, and alike."""
    timed = _problem(problem)
    sizes, inner, outer = (4, 68), 0.0, 0.0
    for _ in range(ATTEMPTS):
        runs = [TimedWorker("nothing", control[1], True), TimedWorker("null", clean[1], True, null=True)]
        for _ in range(3):
            made = timed.make_round(2, [(False, size) for size in sizes])
            for timed_worker in runs:
                timed_worker.run(timed, made, flush=0, flush_bytes=FLUSH_BYTES, check=False)
        if any(timed_worker.refusal for timed_worker in runs):
            return "The null kernel could not be timed."
        inner = quantile([s for one in runs[0].rounds for ran in one for s in ran.seconds], 0.5)
        walls = [[min(one[place].wall for one in timed_worker.rounds) for place in (0, 1)] for timed_worker in runs]
        slopes = [(long - short) / (sizes[1] - sizes[0]) for short, long in walls]
        outer = slopes[0] - slopes[1]
        calibration.append((inner, outer))
        if inner < NOTHING_SECONDS and abs(outer) < NOTHING_SECONDS:
            return ""
    return f"The clocks are not fit: a call that does nothing takes {say(inner)} by the worker's clock and " \
        f"{say(outer)} by the judge's."
