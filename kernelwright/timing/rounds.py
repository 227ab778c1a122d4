"""TIME's measuring: several callables in one process, in interleaved rounds, on cold caches.

What one call costs is read off a clock of :mod:`kernelwright.timing.clock`; what the host costs shows in
``back_to_back_seconds``, the wall time per call of a batch. Calls during which threads waited for processors say
nothing: a round in which one of the callables has no other calls is void, for all of them, and where too few rounds
remain, the machine is busy, and no time holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright import processors
from kernelwright.device_lock import was_noisy
from kernelwright.timing.clock import CpuClock, CudaClock, without_collector
from kernelwright.timing.statistics import Ratio, median_interval, paired_ratio, quantile
from kernelwright.verify.plain import plain

MOST_ROUNDS = 500
LEAST_ROUNDS = 2
#: Rounds that must remain where others are void; with fewer the machine is busy. Where more than this share of them is
#: void, it was not quiet.
LEAST_QUIET, VOID_SHARE = 5, 0.25
#: Of rounds whose number was asked for, so many times more are tried at most, where some are void.
MORE_ROUNDS = 2
#: A call much faster than the slowest of its round is measured several times in it, at most this often.
MOST_CALLS_IN_ROUND = 8
#: Wall time that a batch of back-to-back calls aims at, and how many there are.
BATCH_SECONDS = 0.02
BATCHES, MOST_BATCHES = 3, 9
#: Calls of each callable that are waited for one by one, at most and at least, and the shares of the budget that they
#: may take: where the least do not fit theirs there are none.
MOST_WAITED, WAITED_SHARE = 25, 0.1
LEAST_WAITED, LEAST_WAITED_SHARE = 3, 0.3
#: Measuring ends early where every median's 95 % interval is as narrow as this, relative to the median.
NARROW = 0.004
#: How what is said begins where too few rounds were undisturbed.
BUSY = "busy machine"


@dataclass(frozen=True)
class Times:
    """Times of one callable, in seconds. ``seconds`` are all measured calls in order; ``rounds`` the median
    of each interleaved round (for pairing); ``interval`` a 95 % bootstrap interval of the median.

    ``first_seconds`` is the wall time of the very first call. ``back_to_back_seconds`` is wall time per call
    of ``batch`` calls in a row on warm caches, host overhead included (None where the budget had no room).
    ``waited_seconds`` is the median wall time of one call on warm caches, from its beginning until its results are
    there (None where the budget had no room).
    ``elsewhere_seconds`` is how long the device went on after a call's end on its own stream: work on other
    streams that the events did not see. ``note`` says what limits the measurement. ``void`` is the number of rounds
    that were left out because threads waited for processors; where the machine was ``busy``, none was left out, too few
    being undisturbed, and the times are no measurement of the callable.
    """

    name: str
    seconds: tuple[float, ...]
    rounds: tuple[float, ...]
    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    interval: tuple[float, float]
    repetitions: int
    warmups: int
    first_seconds: float
    back_to_back_seconds: float | None
    batch: int
    elsewhere_seconds: float
    waited_seconds: float | None = None
    note: str = ""
    void: int = 0
    busy: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data; of the single times only their number is kept."""
        document = plain(self)
        del document["seconds"], document["rounds"]
        return document


def ratio(slower: Times, faster: Times) -> Ratio:
    """Return how many times faster ``faster`` is than ``slower``, with its interval over common rounds."""
    return paired_ratio(slower.name, faster.name, slower.rounds, faster.rounds)


def measure(
    callables: Mapping[str, Callable[[], object]],
    *,
    device: torch.device | str,
    repetitions: int | None = None,
    budget_seconds: float = 5.0,
    flush_cache: bool = True,
    fresh_inputs: Callable[[], object] | None = None,
) -> dict[str, Times]:
    """Measure ``callables`` in interleaved rounds and return their `Times` by name.

    ``repetitions`` fixes the number of rounds; otherwise as many as ``budget_seconds`` allows for all
    together, between 2 and 500. ``fresh_inputs`` is called, untimed, before every round to renew the inputs.
    Each callable is warmed up at least once, unless that one call exceeds the budget: then it is the
    measurement, and the note says so. Raises what the callables raise; ValueError for none.
    """
    if not callables:
        raise ValueError("there is nothing to measure")
    device = torch.device(device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        with torch.cuda.device(device), without_collector():
            clock: Any = CudaClock(device, flush_cache)
            return _measure(callables, clock, repetitions, budget_seconds, fresh_inputs)
    if not processors.waits():  # nobody can see whether others took the processors
        was_noisy()
    with without_collector():
        return _measure(callables, CpuClock(flush_cache), repetitions, budget_seconds, fresh_inputs)


@dataclass
class _Warm:
    first: float
    typical: float  # wall seconds of a warm call, the device's work included
    issue: float  # host seconds until the call returns
    calls: int
    overlong: bool
    disturbed: bool = False  # threads waited for processors in the first call


def _measure(
    callables: Mapping[str, Callable[[], object]],
    clock: Any,
    repetitions: int | None,
    budget: float,
    fresh_inputs: Callable[[], object] | None,
) -> dict[str, Times]:
    names = list(callables)
    started = time.perf_counter()
    if fresh_inputs is not None:
        fresh_inputs()
    warm = {name: _warm_up(callables[name], clock, budget, len(names)) for name in names}
    live = [name for name in names if not warm[name].overlong or repetitions is not None]
    found = _Rounds({n: [] if n in live else [warm[n].first] for n in names})
    slowest = max((warm[n].typical for n in live), default=0.0)
    calls = {n: max(1, min(MOST_CALLS_IN_ROUND, int(slowest / max(warm[n].typical, 1e-9) / 4))) for n in live}
    done = 0
    longest = 0.0
    while live:
        if repetitions is not None and (done - found.void >= max(1, repetitions) or done >= MORE_ROUNDS * repetitions):
            break
        used = time.perf_counter() - started
        # The rest of the budget is kept for calls that are waited for, and for batches of calls in a row.
        if repetitions is None and (
            done >= MOST_ROUNDS or (done >= LEAST_ROUNDS and used + longest > 0.7 * budget)
            or (done - found.void >= 25 and done % 5 == 0 and all(_narrow(found.samples[n]) for n in live))
        ):
            break
        begun = time.perf_counter()
        if fresh_inputs is not None:
            fresh_inputs()
        # Each round starts with another one and every second runs backwards: no fixed predecessor.
        order = live[done % len(live) :] + live[: done % len(live)]
        taken: dict[str, list[tuple[float, float]]] = {}
        for name in order if done % 2 == 0 else reversed(order):
            taken[name] = [(clock.once(callables[name], warm[name].issue * 1.5), clock.waited)
                           for _ in range(calls[name])]
        found.add(taken)
        longest = max(longest, time.perf_counter() - begun)
        done += 1
    clock.finish()
    busy = found.settle()
    if found.void > VOID_SHARE * done:
        was_noisy()
    called = {n: callables[n] for n in names if not warm[n].overlong}
    waited = _waited(called, clock, warm, budget)
    in_a_row = _back_to_back(called, clock, warm, budget)
    return {
        name: _times(name, callables[name], clock, found, done, warm[name], budget, in_a_row.get(name),
                     waited.get(name), busy)
        for name in names
    }


class _Rounds:
    """The seconds of all calls, and their medians by round, of rounds that are not void; and of those that are, apart.
    """

    def __init__(self, samples: dict[str, list[float]]) -> None:
        self.samples = samples
        self.rounds = {name: list(seconds) for name, seconds in samples.items()}
        self.disturbed: dict[str, list[list[float]]] = {}
        self.void = 0

    def add(self, taken: Mapping[str, list[tuple[float, float]]]) -> None:
        """One round: for each callable, its calls' seconds, and the longest that a thread waited in each."""
        quiet = {name: [s for s, waited in calls if not processors.is_disturbed(s, waited)]
                 for name, calls in taken.items()}
        if not all(quiet.values()):
            self.void += 1
            for name, calls in taken.items():
                self.disturbed.setdefault(name, []).append([seconds for seconds, _ in calls])
            return
        for name, seconds in quiet.items():
            self._take(name, seconds)

    def settle(self) -> bool:
        """Whether the machine is busy: then void rounds are taken after all, as there is nothing better."""
        if not self.void or min(len(self.rounds[name]) for name in self.disturbed) >= LEAST_QUIET:
            return False
        for name, rounds in self.disturbed.items():
            for seconds in rounds:
                self._take(name, seconds)
        return True

    def _take(self, name: str, seconds: list[float]) -> None:
        self.samples[name] += seconds
        self.rounds[name].append(quantile(seconds, 0.5))


def _narrow(seconds: list[float]) -> bool:
    """Whether the median is known well enough: its interval by order statistics (binomial, normal approximation)."""
    values, half = sorted(seconds), 0.98 * math.sqrt(len(seconds))
    low = values[max(0, math.floor(len(values) / 2 - half))]
    high = values[min(len(values) - 1, math.ceil(len(values) / 2 + half))]
    return high - low <= NARROW * quantile(values, 0.5)


def _warm_up(function: Callable[[], object], clock: Any, budget: float, among: int) -> _Warm:
    """Call until warm: at least once, at most a tenth of this callable's share of the budget or ten times."""
    before, started = processors.waits(), time.perf_counter()
    issue, first = _issue(function, clock)
    typical, calls = first, 1
    # A single call longer than the whole budget is not repeated.
    if first > budget:
        waited = processors.longest_wait(before, processors.waits())
        return _Warm(first, first, issue, 0, True, processors.is_disturbed(first, waited))
    while calls < 10 and (calls < 2 or time.perf_counter() - started < 0.1 * budget / among):
        if typical * 2 > budget / among:
            break
        issue, seconds = _issue(function, clock)
        typical = min(typical, seconds)  # one that waited for a processor is not typical
        calls += 1
    return _Warm(first, typical, issue, calls, False)


def _issue(function: Callable[[], object], clock: Any) -> tuple[float, float]:
    """(seconds until the call returns, seconds until its work is done)."""
    clock.finish()
    started = time.perf_counter()
    kept = function()
    returned = time.perf_counter() - started
    clock.finish()
    total = time.perf_counter() - started
    del kept
    return returned, total


def _times(
    name: str,
    function: Callable[[], object],
    clock: Any,
    found: _Rounds,
    done: int,
    warm: _Warm,
    budget: float,
    in_a_row: tuple[float, int] | None,
    waited: float | None,
    busy: bool,
) -> Times:
    seconds = found.samples[name]
    median = quantile(seconds, 0.5)
    notes = []
    per_call, batch = in_a_row or (None, 0)
    elsewhere = 0.0
    if warm.overlong:
        notes.append(f"one call takes longer than the budget of {budget:g} s: the first is the only one")
    else:
        elsewhere = clock.elsewhere(function) if warm.typical <= 0.2 * budget else 0.0
    if elsewhere > 0.05 * median:
        notes.append(f"the device works {elsewhere * 1e3:.2g} ms longer on other streams than the events saw")
    if busy or warm.disturbed:
        where = f"{found.void} of {done} rounds" if busy else "its only call"
        notes.append(f"{BUSY}: threads waited for a processor in {where}")
    elif len(seconds) < 5 and not warm.overlong:
        notes.append(f"only {len(seconds)} measurements fitted the budget")
    return Times(
        name=name,
        seconds=tuple(seconds),
        rounds=tuple(found.rounds[name]),
        median=median,
        lower_quartile=quantile(seconds, 0.25),
        upper_quartile=quantile(seconds, 0.75),
        minimum=min(seconds),
        interval=median_interval(seconds),
        repetitions=len(seconds),
        warmups=warm.calls,
        first_seconds=warm.first,
        back_to_back_seconds=per_call,
        batch=batch,
        elsewhere_seconds=elsewhere,
        waited_seconds=waited,
        note="; ".join(notes),
        void=found.void,
        busy=busy or warm.disturbed,
    )


def _waited(callables: Mapping[str, Callable[[], object]], clock: Any, warm: Mapping[str, _Warm], budget: float
            ) -> dict[str, float]:
    """Median wall seconds of a call that is waited for; those of all callables in turn, as whatever else the host does
    may last for a while. Of undisturbed calls, where there are enough."""
    together = sum(warm[name].typical for name in callables)
    count = min(MOST_WAITED, int(WAITED_SHARE * budget / max(together, 1e-7)))
    if count < LEAST_WAITED:
        count = LEAST_WAITED if LEAST_WAITED * together <= LEAST_WAITED_SHARE * budget else 0
    found: dict[str, list[float]] = {name: [] for name in callables}
    for _ in range(count):
        for name, function in callables.items():
            before = processors.waits()
            seconds = _issue(function, clock)[1]
            if not processors.is_disturbed(seconds, processors.longest_wait(before, processors.waits())):
                found[name].append(seconds)
    return {name: quantile(seconds, 0.5) for name, seconds in found.items() if len(seconds) >= LEAST_WAITED}


def _back_to_back(callables: Mapping[str, Callable[[], object]], clock: Any, warm: Mapping[str, _Warm], budget: float
                  ) -> dict[str, tuple[float, int]]:
    """Wall seconds per call, and the calls of a batch: the least of a few batches, as whatever else the host does only
    adds; those of all callables in turn, as it may do so for a while. Nothing of those that take too long for it, or
    that waited for processors in every batch."""
    counts, found = dict[str, int](), dict[str, list[float]]()
    for name in callables:
        typical = warm[name].typical
        batch = max(2, min(1000, math.ceil(min(BATCH_SECONDS, 0.1 * budget) / max(typical, 1e-7))))
        if BATCHES * batch * typical <= 0.2 * budget:
            counts[name] = batch
    begun = time.perf_counter()
    for turn in range(MOST_BATCHES):
        short = {name: batch for name, batch in counts.items() if len(found.get(name, ())) < BATCHES}
        if not short or (turn >= BATCHES and time.perf_counter() - begun > 0.1 * budget):
            break
        for name, batch in short.items():
            clock.finish()
            before, started = processors.waits(), time.perf_counter()
            for _ in range(batch):
                callables[name]()
            clock.finish()
            seconds = time.perf_counter() - started
            if not processors.is_disturbed(seconds, processors.longest_wait(before, processors.waits())):
                found.setdefault(name, []).append(seconds / batch)
    return {name: (min(seconds), counts[name]) for name, seconds in found.items()}
