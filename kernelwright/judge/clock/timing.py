"""The clock of the judge: model, candidates and a null candidate in the same rounds, each in its own process.

Everybody runs the same calls in the same rounds, in changing order, and there is no warm-up that looks different: the
first round is checked like the others, and not counted. What the figures mean is decided in `figures.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from kernelwright.device_lock import locked_device
from kernelwright.judge.clock.figures import decide
from kernelwright.judge.clock.outer import slope
from kernelwright.judge.clock.timed import TimedProblem
from kernelwright.judge.clock.timed_worker import TimedWorker
from kernelwright.judge.records import CandidateTiming, Finding, Refusal
from kernelwright.judge.worker.machine import free_bytes, handout_seconds
from kernelwright.judge.worker.process import Worker
from kernelwright.problem import Problem
from kernelwright.roofline.peaks import measured_faster
from kernelwright.timing.clock import flush_bytes
from kernelwright.timing.environment import environment, throttling
from kernelwright.timing.statistics import quantile
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.state import call_in_float64, float64_copy, widened
from kernelwright.verify.tolerance import Tolerance

LEAST_ROUNDS, MOST_ROUNDS = 5, 40
#: For those whose clocks disagree there are more rounds, in at most so many times the budget.
MORE_SECONDS = 2.0
#: Calls longer than this come in short batches.
LONG_CALL_SECONDS = 0.02
#: Calls longer than this are not timed in a row at all: next to them the flush of caches is short.
VERY_LONG_CALL_SECONDS = 0.3
#: What waiting for processors may take off a candidate's wall time, beside twice the share that it takes of the
#: model's: who makes its own threads wait for each other gains nothing by it.
WAITS = 0.05
#: No delay of the host is hidden behind a longer flush than this.
LONGEST_FLUSH_SECONDS = 0.02
#: A floor from a CPU's bandwidth is trusted by half: nobody knows exactly what its caches keep.
CPU_FLOOR_SHARE = 0.5


@dataclass(frozen=True)
class Clocked:
    """What was measured: a time or a refusal by candidate, the baseline's own time (None where the model could not be
    timed), the environment before and after, and findings that are no refusal, by candidate."""

    timings: dict[str, CandidateTiming | Refusal]
    baseline: CandidateTiming | None
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    rounds: int = 0
    note: str = ""


def time_candidates(problem: Problem, baseline: Worker, candidates: Mapping[str, Worker], floor_seconds: float | None,
                    budget_seconds: float, *, model: nn.Module, tolerance: Tolerance | None = None,
                    uses_random: bool = False, cached: bool = False, secret: int | None = None,
                    distribution: str = AS_GIVEN, eager_error: float | None = None, exact: bool = True) -> Clocked:
    """Time the constructed modules of all workers against each other, about ``budget_seconds`` long.

    ``baseline``'s worker holds the problem's own model (`baseline_text`), under which everybody's state is written:
    that of ``model``, in its mode. ``cached``: the problem fits into the CPU's caches, so the floor says nothing there.
    ``distribution`` names that of the inputs: one from which other draws give other outputs
    (`ProblemProfile.varying`), and ``eager_error`` is eager's own error on them, where known. ``exact``: a float64 copy
    computes what eager does.
    Afterwards workers hold the timing's state, and a RemoteCandidate does not know of it. A candidate that fails gets
    a `Refusal`; nothing is raised for one. Raises what the model itself raises.
    """
    started = time.perf_counter()
    double = _double(model, problem, budget_seconds) if exact else None
    timed = TimedProblem(problem, model, double, uses_random=uses_random, tolerance=tolerance, secret=secret,
                         distribution=distribution, eager_error=eager_error)
    reference = TimedWorker("eager", baseline, model.training, trusted=True)
    null = TimedWorker("null", baseline, model.training, null=True, trusted=True)
    others = [TimedWorker(name, worker, model.training) for name, worker in candidates.items()]
    before = environment(problem.device)
    for timed_worker in others:
        timed_worker.worker.pause()
    waited = time.perf_counter()
    with locked_device():
        started += time.perf_counter() - waited  # the budget is for rounds, not for others'
        note = _rounds(timed, reference, null, others, budget_seconds, started)
    floor = _floor(problem.device, floor_seconds, cached)
    timings: dict[str, CandidateTiming | Refusal] = {}
    findings: dict[str, tuple[Finding, ...]] = {}
    kind = problem.device.type
    own = decide("eager", reference.rounds, null.rounds, None, None, kind, trusted=True)[0]
    eager = own if isinstance(own, CandidateTiming) else None
    handout = handout_seconds(timed.output_bytes) if kind == "cpu" else 0.0

    def decided(timed_worker: TimedWorker) -> tuple[CandidateTiming | Refusal, tuple[Finding, ...]]:
        return decide(timed_worker.name, timed_worker.rounds, null.rounds, eager, floor, kind, control=reference.rounds,
                      handout=handout)

    for timed_worker in others:
        timings[timed_worker.name] = timed_worker.refusal or Refusal("JUDGE-ERROR", Finding("no-time", note, "clock"))
        if timed_worker.refusal is None and eager is not None:
            timings[timed_worker.name], findings[timed_worker.name] = decided(timed_worker)
    below = [c for c in others if isinstance(found := timings[c.name], Refusal) and found.verdict == "CHEAT-FLOOR"]
    if below and floor is not None:
        floor /= measured_faster(problem.device)
        for timed_worker in below:
            timings[timed_worker.name], findings[timed_worker.name] = decided(timed_worker)
    after = environment(problem.device)
    slowed = dict.fromkeys((*throttling(before), *throttling(after)))
    words = [note, f"The GPU ran more slowly than it can: {', '.join(slowed)}." if slowed else ""]
    return Clocked(timings, eager, findings, {"before": before, "after": after}, len(null.rounds) - 1,
                   " ".join(filter(None, words)))


def baseline_text(problem: Problem) -> str:
    """The problem's file as a candidate: its class is called ModelNew. Raises ValueError where there is no file."""
    if problem.source is None:
        raise ValueError("a model given from Python has no file that another process could load")
    return f"{problem.source}\n\nModelNew = {problem.class_name}\n"


def _double(model: nn.Module, problem: Problem, budget: float) -> nn.Module | None:
    """A float64 copy of the model, where it exists and a call of it takes a small part of the budget."""
    try:
        double = float64_copy(model)
        begun = time.perf_counter()
        with torch.no_grad():
            call_in_float64(double, widened(problem.make_inputs(0)))
        return double if time.perf_counter() - begun < 0.01 * budget else None
    except Exception:  # no float64 for an operator, too little memory, a model that cannot be copied
        return None


def _rounds(timed: TimedProblem, reference: TimedWorker, null: TimedWorker, others: list[TimedWorker], budget: float,
            started: float) -> str:
    """Run rounds until the budget is spent; words on what could not be done."""
    device = timed.problem.device
    size, passes, check, notes = flush_bytes() if device.type == "cpu" else _device_flush(device), 1, True, []
    shape = _shape(timed, _eager_seconds(timed))
    longest, done, waits = 0.0, 0, 0.0
    unclear: list[TimedWorker] | None = None
    while done <= MOST_ROUNDS:
        spent = time.perf_counter() - started
        if done > _least(spent + longest, budget) and spent + longest > budget:
            if unclear is None:  # once: who may stop as soon as clocks agree has many chances that they do
                begun = time.perf_counter()
                unclear = _unclear(others, null, reference, device.type)
                started += time.perf_counter() - begun
            if not unclear or spent + longest > MORE_SECONDS * budget:
                break
        begun = time.perf_counter()
        made = timed.make_round(*shape)
        live = [reference, null, *(c for c in (others if unclear is None else unclear) if c.refusal is None)]
        order = live if done == 0 else live[done % len(live):] + live[:done % len(live)]
        for timed_worker in order if done % 2 == 0 else reversed(order):
            if not timed_worker.trusted:  # a machine that others use makes the model wait, too, now or in another round
                waits = max(waits, reference.waited, null.waited)
                timed_worker.waits = WAITS + 2 * waits
            timed_worker.run(timed, made, flush=passes, flush_bytes=size, check=check)
            if timed_worker.trusted and timed_worker.refusal is not None:
                if timed_worker.refusal.finding.kind != "baseline-differs":
                    return f"The model's own process failed: {timed_worker.refusal.finding.sentence}"
                notes.append(timed_worker.refusal.finding.sentence)
                timed_worker.refusal, timed_worker.wrong, check = None, [], False
                timed_worker.run(timed, made, flush=passes, flush_bytes=size, check=check)
        if not any(c.refusal is None for c in others) and others:
            break
        if done == 0 and device.type == "cuda":
            passes = _passes([c for c in live if c.rounds], null)
        if done:
            longest = max(longest, time.perf_counter() - begun)
        else:  # in the first round wrong candidates are found out, which takes time that the others need not pay for
            started = time.perf_counter()
        done += 1
    return " ".join(notes)


def _unclear(timed_workers: Sequence[TimedWorker], null: TimedWorker, reference: TimedWorker, kind: str
             ) -> list[TimedWorker]:
    """Those whose clocks disagree, so that more rounds may tell whether that was load."""
    own = decide("eager", reference.rounds, null.rounds, None, None, kind, trusted=True)[0]
    eager, found = own if isinstance(own, CandidateTiming) else None, []
    for timed_worker in timed_workers:
        if timed_worker.refusal is None:
            timing, beside = decide(timed_worker.name, timed_worker.rounds, null.rounds, eager, None, kind,
                                    control=reference.rounds)
            disagree = any(one.kind == "clocks-disagree" for one in beside)
            if disagree or (isinstance(timing, Refusal) and timing.verdict == "JUDGE-BUSY"):
                found.append(timed_worker)
    return found


def _least(seconds: float, budget: float) -> int:
    """Rounds that must be counted although they take ``seconds`` in all: three of them tell forged clocks."""
    return LEAST_ROUNDS if seconds < 3 * budget else 3 if seconds < 6 * budget else 1


def _eager_seconds(timed: TimedProblem) -> float:
    """Wall seconds of a call of the model in this process: the least of a few."""
    arguments = timed.problem.make_inputs(0)
    taken: list[float] = []
    with torch.no_grad():
        while len(taken) < 2 or (len(taken) < 20 and sum(taken) < 0.2):
            begun = time.perf_counter()
            timed.model(*arguments)
            if timed.problem.device.type == "cuda":
                torch.cuda.synchronize(timed.problem.device)
            taken.append(time.perf_counter() - begun)
    timed.start.apply(timed.model)
    return min(taken)


def _shape(timed: TimedProblem, seconds: float) -> tuple[int, list[tuple[bool, int]]]:
    """(slots, batches) of a round: calls that last and outputs that are large come in smaller numbers."""
    cold = (2, 6) if seconds < LONG_CALL_SECONDS else (1, 3) if seconds < VERY_LONG_CALL_SECONDS else (1, 2)
    room = max(2, int(_room(timed.problem.device) / 6 / max(1, timed.output_bytes)))
    if timed.own_slots:
        cold = (1, 2)
        room = min(room, 2)
    batches = [(True, min(cold[0], room)), (True, min(cold[1], room))]
    batches[0] = (True, min(batches[0][1], batches[1][1] - 1))
    if seconds < LONG_CALL_SECONDS and room >= 6:
        more = min(room, 4 + max(8, min(48, int(0.03 / max(seconds, 1e-6)))))
        batches += [(False, min(4, more - 2)), (False, more)]
    elif seconds < VERY_LONG_CALL_SECONDS:
        batches += [(False, 1), (False, 2)]
    slots = 3 if 12 * timed.input_bytes < _room(timed.problem.device) else 2
    return slots, batches


def _room(device: torch.device) -> float:
    """Bytes that one timed worker may take for inputs and outputs."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / 8
    return free_bytes() / 8


def _device_flush(device: torch.device) -> int:
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or 0
    return max(256 << 20, 2 * cache)


def _passes(timed_workers: Sequence[TimedWorker], null: TimedWorker) -> int:
    """Passes of the flush after which the host of every timed worker is ahead, by what the first round took."""
    flush = max(1e-5, slope(null.rounds[0], lambda ran: ran.wall, cold=True) or 1e-5)
    host = max((quantile(ran.issued, 0.5) for c in timed_workers for ran in c.rounds[0] if not ran.cold), default=0.0)
    return max(1, min(int(LONGEST_FLUSH_SECONDS / flush), int(1.5 * host / flush) + 1))


def _floor(device: torch.device, seconds: float | None, cached: bool) -> float | None:
    """The time below which nobody is believed."""
    if not seconds:
        return None
    if device.type == "cpu":
        return None if cached else CPU_FLOOR_SHARE * seconds
    return seconds
