"""The outer clock: what the judge's own watch, and the kernel, show of a candidate's calls; nobody can forge it.

Everything is less the same of a candidate that does nothing, and beside it stands what the same watch shows of the
model, whose own clock is believed: by how much that is more than the model's clock says is what load does to figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.processors import processors
from kernelwright.timing.statistics import median_interval, quantile

COLD, ROW, PROCESSORS = "calls on flushed caches", "calls in a row", "time on processors"
#: A slope is small where the shorter batch was made long on purpose; the longer batch alone shows that.
LONGER = {COLD: "all of the longer batch of calls on flushed caches", ROW: "all of the longer batch of calls in a row"}
#: From so many rounds on an interval is one (few must all say the same), and a control of as many rounds tells noise.
MANY_ROUNDS, LEAST_ROUNDS = 8, 5
#: With fewer rounds than that the disturbance that was seen may have been the smaller part of what there was.
FEW_NOISE = 4.0


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch as it was timed. ``wall`` is the judge's own: from the request to the reply that commits to all outputs
    by their sums, less what threads spent waiting for a processor on a busy machine; ``ran`` is what threads spent on
    one. Both are the kernel's. (Fetching outputs comes after: how long transfers take differs, and nothing can be
    computed then.) The others are what the worker says, by call: seconds, seconds until the host went on, seconds that
    other streams went on, seconds of processor time. ``waited`` is what was taken off the wall time: no clock beside
    calls can do that, so that where the judge's counts instead, it is not taken off, either. ``delayed`` is all that
    threads spent waiting for a processor, also what is not taken off, as the model does not wait as much; and
    ``faults`` how often memory had to be read from a disk."""

    cold: bool
    wall: float
    ran: float
    seconds: tuple[float, ...]
    issued: tuple[float, ...]
    left: tuple[float, ...]
    processor: tuple[float, ...]
    waited: float = 0.0
    delayed: float = 0.0
    faults: int = 0


#: Batches by round.
Rounds = Sequence[Sequence[Ran]]
#: What a batch says, in seconds.
Value = Callable[[Ran], float]


def slope(ran: Sequence[Ran], value: Value, *, cold: bool) -> float | None:
    """Seconds per call as the judge sees them: over two batch lengths, so that what a request costs cancels."""
    found = [one for one in ran if one.cold is cold]
    if len(found) != 2:
        return None
    return (value(found[1]) - value(found[0])) / (len(found[1].seconds) - len(found[0].seconds))


def _longer(ran: Sequence[Ran], value: Value, *, cold: bool) -> float | None:
    """Seconds per call of the longer of two batches, with what a request costs."""
    found = [one for one in ran if one.cold is cold]
    return value(found[1]) / len(found[1].seconds) if len(found) == 2 else None


def wall(ran: Ran) -> float:
    """Seconds of a batch by the judge's watch, without waiting for processors."""
    return ran.wall


def whole_wall(ran: Ran) -> float:
    """Seconds of a batch by the judge's watch."""
    return ran.wall + ran.waited


def undelayed(ran: Ran) -> float:
    """The least seconds that a batch would take on a machine where no thread ever waits for a processor. Who makes its
    own threads wait makes this small: it is good for accusing somebody, and no time."""
    return max(min(ran.wall, whole_wall(ran) - ran.delayed), min(ran.wall, processor(ran)))


def processor(ran: Ran) -> float:
    """Seconds that a batch's threads spent on processors, as if they had kept every one busy."""
    return ran.ran / processors()


def around(value: Value, kind: str) -> Value:
    """What there is around calls of the null candidate, in the way of ``value``: on a CPU these write outputs, which
    does not count; its worker's clock is believed."""
    if kind == "cuda":
        return value
    if value is processor:
        return lambda ran: processor(ran) - sum(ran.processor) / processors()
    return lambda ran: value(ran) - sum(ran.seconds)


@dataclass(frozen=True, slots=True)
class Outer:
    """Seconds per call in one way of looking: ``value``, a median, and the ends of its interval; ``unexplained`` is the
    lower end of what is more than the worker's clock says of the same batches, and ``noise`` how much of that load
    makes of nothing. ``said`` is what the worker's clock says, looked at in the same way: calls of longer batches may
    take longer, as their outputs are all kept. ``by_round`` has what was taken off as waiting, too."""

    value: float
    low: float
    high: float
    unexplained: float
    noise: float
    said: float
    by_round: tuple[float, ...]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return median_interval(values) if len(values) >= MANY_ROUNDS else (min(values), max(values))


def known(values: Iterable[float | None]) -> list[float]:
    """Those that there are."""
    return [value for value in values if value is not None]


def outers(rounds: Rounds, null: Rounds, control: Rounds, kind: str, said: Value, watch: Value = wall
           ) -> dict[str, Outer]:
    """What the judge sees of a call in each way, less what it sees around those of the null candidate, by the rounds
    that count. ``said`` is what a worker says of a batch; ``control`` has the model's rounds; ``watch`` is what the
    judge's watch says of a batch.

    The time on processors holds on a busy machine, too: that of all threads, as if they had kept every processor busy.
    """
    row = any(not ran.cold for ran in rounds[-1])
    ways: dict[str, tuple[Any, bool, Value]] = {
        COLD: (slope, True, watch), ROW: (slope, False, watch), LONGER[COLD]: (_longer, True, watch),
        LONGER[ROW]: (_longer, False, watch), PROCESSORS: (slope, not row, processor)}
    if kind == "cuda":  # where a processor that waits for the device is busy
        del ways[PROCESSORS]
    found = {}
    for way, (each, cold, value) in ways.items():
        def less(own: Sequence[Ran], empty: Sequence[Ran], value: Value = value, each: Any = each, cold: bool = cold
                 ) -> float | None:
            mine, nothing = each(own, value, cold=cold), each(empty, around(value, kind), cold=cold)
            return None if mine is None or nothing is None else mine - nothing

        pairs = [(own, empty) for own, empty in zip(rounds, null) if less(own, empty) is not None]
        if not pairs:
            continue
        seen = known(less(own, empty) for own, empty in pairs)
        told = [each(own, said, cold=cold) for own, _ in pairs]
        more = [one - claim for one, claim in zip(seen, told)]
        nothing = [each(empty, around(value, kind), cold=cold) for _, empty in pairs]
        spread = max(nothing) - min(nothing) if len(pairs) < MANY_ROUNDS else 0.0
        load = [one - each(own, said, cold=cold) for own, (_, empty) in zip(control, pairs)
                if (one := less(own, empty)) is not None]
        noise = max(0.0, _ends(load)[1]) + spread * (kind == "cpu") if load else 0.0
        # An interval of a few rounds is hardly one: then every round must say it, and on a GPU, whose calls are short
        # beside what is around them, by more than the rounds of a candidate that does nothing differ.
        few = spread if kind == "cuda" else 0.0
        shown = seen if value is not wall else known(less(own, empty, whole_wall) for own, empty in pairs)
        low, high = _ends(seen)
        found[way] = Outer(quantile(seen, 0.5), low - few, high + few, _ends(more)[0],
                           noise * (FEW_NOISE if len(pairs) < LEAST_ROUNDS else 1.0), quantile(told, 0.5), tuple(shown))
    return found


def undisturbed(rounds: Rounds, null: Rounds, control: Rounds, said: Value) -> Outer | None:
    """The longest batches alone, which have the least around their calls; on a CPU.

    ``low`` is what a call takes in any case: by how much the least that a batch of the candidate ever took is above the
    least that there is around calls, of the null candidate or as what the model's worker leaves unexplained. Load only
    adds to a least, and hardly to that of all rounds. Where one hides work, the least shows it: that there was load in
    some rounds, and who made it, is no help. ``noise`` is what the least shows of the model in the same way: caches
    that calls have filled make what is around them longer than it is around nothing.
    """
    pairs = [(own[-1], empty[-1]) for own, empty in zip(rounds, null)]
    if not pairs:
        return None
    count = len(pairs[0][0].seconds)
    beside, whole_beside = around(wall, "cpu"), around(whole_wall, "cpu")
    empty = min(whole_beside(empty) for _, empty in pairs)
    unexplained = min((whole_wall(own[-1]) - said(own[-1]) for own in control), default=empty)
    least = max(min(whole_wall(own) for own, _ in pairs) - min(empty, unexplained),
                min(wall(own) for own, _ in pairs) - min(beside(empty) for _, empty in pairs)) / count
    seen = [(wall(own) - beside(empty)) / count for own, empty in pairs]
    shown = tuple((whole_wall(own) - whole_beside(empty)) / count for own, empty in pairs)
    told, noise = quantile([said(own) / count for own, _ in pairs], 0.5), max(0.0, unexplained - empty) / count
    return Outer(max(quantile(seen, 0.5), least), least, max(seen), 0.0, noise, told, shown)


def resolution(null: Rounds, control: Rounds, said: Value) -> float:
    """Seconds per call below which the judge's watch tells nothing on a CPU: by how much it misses the model's own
    figures in the longest batches. Zero where there are none."""
    beside = around(whole_wall, "cpu")
    missed = [(whole_wall(own[-1]) - beside(empty[-1]) - said(own[-1])) / len(own[-1].seconds)
              for own, empty in zip(control, null)]
    if not missed:
        return 0.0
    middle = quantile(missed, 0.5)
    return abs(middle) + quantile([abs(each - middle) for each in missed], 0.5) / len(missed) ** 0.5
