"""Two clocks: what a worker measures beside its calls, and what the judge's own watch allows.

The inner clock is precise and can be forged; the outer one, the slope of wall time over two batch lengths less that of
a null candidate, cannot. A candidate is timed by the inner clock where the outer one agrees, else by the outer one, and
where the two are far apart it is refused. Like is compared with like:

- *cold* batches flush the caches before each call; on a GPU they keep the device busy until the host is ahead, so their
  slope is the device's time. Work on a stream that is not joined would hide behind the flush, so
- batches *in a row* have no flush: their slope is device and host together, and it is held against a worker's own mean
  of device, host and what other streams go on for;
- and the time that the kernel says was spent on processors holds on a busy machine, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.judge.processor import processors
from kernelwright.judge.records import CandidateTiming, Finding, Refusal
from kernelwright.report.units import seconds as say
from kernelwright.timing.statistics import median_interval, paired_ratio, quantile

COLD, ROW, PROCESSORS = "calls on flushed caches", "calls in a row", "time on processors"
#: A slope is small where the shorter batch was made long on purpose; the longer batch alone shows that.
LONGER = {COLD: "all of the longer batch of calls on flushed caches", ROW: "all of the longer batch of calls in a row"}
_ON_FLUSHED = (COLD, LONGER[COLD])
#: From so many rounds on nothing is to be said, forged clocks are told, an interval is one (few must all say the same).
LEAST_ROUNDS, TELLING_ROUNDS, MANY_ROUNDS = 5, 3, 8
#: The inner clock may be below what the outer one shows by this share and, per call, by these seconds.
AGREEMENT = 0.10
TOLERANCE_SECONDS = {"cpu": 30e-6, "cuda": 8e-6}
#: Beyond these the two clocks do not just disagree: somebody tells times that were not.
FORGED_FACTOR, FORGED_SECONDS = 1.5, 4.0
#: A call that sleeps: so long, and so little of it on the processor; so many of them, first of all.
SLEEP_SECONDS, SLEEP_SHARE, SLEEPS = 0.1, 0.1, 3


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch as it was timed. ``wall`` is the judge's own: from the request to the reply that commits to all outputs
    by their sums, less what threads spent waiting for a processor on a busy machine; ``ran`` is what threads spent on
    one. Both are the kernel's. (Fetching outputs comes after: how long transfers take differs, and nothing can be
    computed then.) The others are what the worker says, by call: seconds, seconds until the host went on, seconds that
    other streams went on, seconds of processor time. ``waited`` is what was taken off the wall time: no clock beside
    calls can do that, so that where the judge's counts instead, it is not taken off, either."""

    cold: bool
    wall: float
    ran: float
    seconds: tuple[float, ...]
    issued: tuple[float, ...]
    left: tuple[float, ...]
    processor: tuple[float, ...]
    waited: float = 0.0


#: Batches by round.
Rounds = Sequence[Sequence[Ran]]


def slope(ran: Sequence[Ran], value: Callable[[Ran], float], *, cold: bool) -> float | None:
    """Seconds per call as the judge sees them: over two batch lengths, so that what a request costs cancels."""
    found = [one for one in ran if one.cold is cold]
    if len(found) != 2:
        return None
    return (value(found[1]) - value(found[0])) / (len(found[1].seconds) - len(found[0].seconds))


def _longer(ran: Sequence[Ran], value: Callable[[Ran], float], *, cold: bool) -> float | None:
    """Seconds per call of the longer of two batches, with what a request costs."""
    found = [one for one in ran if one.cold is cold]
    return value(found[1]) / len(found[1].seconds) if len(found) == 2 else None


@dataclass(frozen=True, slots=True)
class _Outer:
    """Seconds per call that the judge's watch shows, without waiting for processors: median and ends of its interval;
    and by round, with that."""

    value: float
    low: float
    high: float
    by_round: tuple[float, ...]


def _wall(ran: Ran) -> float:
    return ran.wall


def _whole_wall(ran: Ran) -> float:
    return ran.wall + ran.waited


def _outers(rounds: Rounds, null: Rounds, kind: str) -> dict[str, _Outer]:
    """What the judge sees of a call in each way, less what it sees of the null candidate. The time on processors holds
    on a busy machine, too: that of all threads, as if they had kept every processor busy."""
    row = any(not ran.cold for ran in rounds[-1])
    ways: dict[str, tuple[Any, bool, Callable[[Ran], float]]] = {
        COLD: (slope, True, _wall), ROW: (slope, False, _wall), LONGER[COLD]: (_longer, True, _wall),
        LONGER[ROW]: (_longer, False, _wall), PROCESSORS: (slope, not row, lambda ran: ran.ran / processors())}
    if kind == "cuda":  # where a processor that waits for the device is busy
        del ways[PROCESSORS]
    outers = {}
    for way, (each, cold, value) in ways.items():
        slopes = [(each(own, value, cold=cold), each(empty, value, cold=cold))
                  for own, empty in zip(rounds[1:], null[1:])]
        found = [own - empty for own, empty in slopes if own is not None and empty is not None]
        if found:
            # An interval of a few rounds is hardly one: then every round must say it, and on a GPU, whose calls are
            # short beside what is around them, by more than the rounds of a candidate that does nothing differ. (On a
            # CPU that is mostly the flush of its caches, and time on processors is looked at, too.)
            nothing = [empty for _, empty in slopes if empty is not None] if kind == "cuda" else [0.0]
            few = max(nothing) - min(nothing)
            ends = median_interval(found) if len(found) >= MANY_ROUNDS else (min(found) - few, max(found) + few)
            shown = found if value is not _wall else [
                each(own, _whole_wall, cold=cold) - each(empty, _whole_wall, cold=cold)
                for own, empty in zip(rounds[1:], null[1:])]
            outers[way] = _Outer(quantile(found, 0.5), *ends, tuple(shown))
    return outers


def decide(name: str, everything: Rounds, null: Rounds, eager: CandidateTiming | None, floor: float | None, kind: str,
           *, trusted: bool = False) -> tuple[CandidateTiming | Refusal, tuple[Finding, ...]]:
    """The time that counts, or a refusal; with findings beside it.

    ``everything`` and ``null`` are the batches by round, the first of which is not counted; ``kind`` is cpu or cuda.
    ``trusted``: the model's own worker, whose clock is believed.
    """
    rounds = everything[1:]
    if not rounds:
        return Refusal("JUDGE-ERROR", Finding("no-round", "No timed round was finished.", "clock")), ()
    findings: list[Finding] = []
    samples = tuple(quantile([s for ran in one if ran.cold for s in ran.seconds], 0.5) for one in rounds)
    inner, interval = quantile(samples, 0.5), median_interval(samples)
    uneven = _uneven(rounds, kind)
    if uneven and not trusted:
        return uneven, ()
    margin = TOLERANCE_SECONDS[kind]
    flush = quantile([s for one in null[1:] if (s := slope(one, lambda ran: ran.wall, cold=True)) is not None] or [0.0],
                     0.5)
    claims = {cold: max(interval[1], _claimed(rounds, kind, flush, cold=cold)) for cold in (True, False)}
    outers = _outers(everything, null, kind)
    excess = {way: found.low - claims[way in _ON_FLUSHED] * (1 + AGREEMENT) - margin for way, found in outers.items()}
    worst = max(excess, key=lambda way: excess[way], default=COLD)
    outer = min((outers[way] for way in (COLD, ROW) if way in outers), key=lambda o: o.high - o.low, default=None)
    seconds, note, why = inner, "", ""
    if excess and excess[worst] > 0 and not trusted:
        claim, least = claims[worst in _ON_FLUSHED], outers[worst].low
        outer = max(outers.values(), key=lambda found: found.value)
        evidence = {"inner_seconds": inner, "outer_seconds": outer.value, "outer_low": least, "seen_by": worst}
        why = f"The worker's clock says {say(claim)} a call, the judge's own at least {say(least)} ({worst})."
        if len(rounds) >= TELLING_ROUNDS and least > FORGED_FACTOR * claim + FORGED_SECONDS * margin:
            verdict, found, sentence = _forged(rounds, why)
            return Refusal(verdict, Finding(found, sentence, "clock", "Do all of a call's work before it returns, on "
                                            "the current stream.", evidence=evidence)), ()
        findings.append(Finding("clocks-disagree", why + " The judge's counts.", "clock", evidence=evidence))
        note = "by the judge's own clock, which the worker's does not explain"
    elif outer is not None and not trusted and (why := _unsupported(rounds, kind, interval[1], flush, margin)):
        outer = max(outers.values(), key=lambda found: found.value)
        findings.append(Finding("clock-not-supported", why, "clock"))
        note = "by the judge's own clock: " + why
    if why and outer is not None and outer.value > inner:
        samples = tuple(max(1e-9, value) for value in outer.by_round)
        seconds = max(outer.value, quantile(samples, 0.5))
        interval = median_interval(samples)
    slept = _slept(everything)
    if slept:
        return slept, ()
    if floor and interval[1] < floor:
        return _below_floor(seconds, floor), ()
    if len(rounds) < LEAST_ROUNDS:
        note = "; ".join(filter(None, (note, _few(len(rounds)))))
    speedup = None
    if eager is not None and len(rounds) >= TELLING_ROUNDS:  # one or two have no spread that would say anything
        speedup = paired_ratio("eager", name, eager.samples, samples)
    shown = outer.value if outer is not None and outer.value > 0 else None
    return CandidateTiming(seconds, interval, inner, shown, samples, speedup, floor, floor / seconds if floor else None,
                           None, note, tuple(range(1, len(samples) + 1))), tuple(findings)


def _few(rounds: int) -> str:
    """What so few rounds leave unsaid."""
    what = "to rank it behind others" if rounds >= TELLING_ROUNDS else "for a speed-up, and to rank it behind others"
    return f"only {rounds} round{'s' * (rounds > 1)} fitted the budget: too few {what}"


def _claimed(rounds: Rounds, kind: str, flush: float, *, cold: bool) -> float:
    """What a call takes by the worker's own figures, as a slope would show it: a mean. On a GPU the host's part comes
    on top of the device's time, as far as no flush of ``flush`` seconds hides it, and what other streams go on for."""
    means = []
    for ran in (ran for one in rounds for ran in one if ran.cold is cold):
        beside = [max(0.0, i - flush) if cold else i + e for i, e in zip(ran.issued, ran.left)]
        total = [s + (b if kind == "cuda" else 0.0) for s, b in zip(ran.seconds, beside)]
        means.append(sum(total) / len(total))
    return quantile(means, 0.5) if means else 0.0


def _unsupported(rounds: Rounds, kind: str, cold: float, flush: float, margin: float) -> str:
    """Why the inner clock's time cannot be held against the outer one, where that is so: in words, or empty."""
    if kind == "cuda":
        issued = quantile([i for one in rounds for ran in one if ran.cold for i in ran.issued], 0.5)
        if issued - flush > AGREEMENT * cold + margin:
            return f"the host takes {say(issued)} to launch a call, longer than a flush hides."
        # Where the host is not ahead, the device's clock goes on while it launches.
        row = [ran for one in rounds for ran in one if not ran.cold]
        own = [max(0.0, s - i) for ran in row for s, i in zip(ran.seconds, ran.issued)]
        warm = quantile(own, 0.5) if own else 0.0
        if warm > FORGED_FACTOR * cold + margin:
            return f"calls in a row take the device {say(warm)}, longer than those on flushed caches, {say(cold)}."
        return ""
    row = [s for one in rounds for ran in one if not ran.cold for s in ran.seconds]
    warm = quantile(row, 0.5) if row else 0.0
    if warm > FORGED_FACTOR * cold + margin:
        return f"calls in a row take {say(warm)}, longer than those on flushed caches, {say(cold)}."
    return ""


def _uneven(rounds: Rounds, kind: str) -> Refusal | None:
    """Whether in most batches one call works and the others hardly do, which a median would not show.

    On a CPU by the processor's time: a call may take long because something else ran meanwhile.
    """
    found, means, medians = [], [], []
    for ran in (ran for one in rounds for ran in one if len(ran.seconds) >= 4):
        work = ran.seconds if kind == "cuda" else ran.processor
        median, most = quantile(work, 0.5), max(work)
        found.append(most > 0.6 * sum(work) and most > 5 * median + TOLERANCE_SECONDS[kind])
        means.append(sum(work) / len(work))
        medians.append(median)
    if len(found) < 4 or sum(found) < 0.75 * len(found):
        return None
    mean, median = quantile(means, 0.5), quantile(medians, 0.5)
    return Refusal("CHEAT-DEFERRED", Finding(
        "one-call-works", f"In {sum(found)} of {len(found)} batches one call does more than all others together: half "
        f"of the calls take at most {say(median)}, the mean is {say(mean)}.", "clock",
        "Do each call's work in that call.", evidence={"median_seconds": median, "mean_seconds": mean}))


def _forged(rounds: Rounds, sentence: str) -> tuple[str, str, str]:
    """(verdict, kind, sentence) for clocks that are far apart, by what else the worker showed."""
    left = quantile([value for one in rounds for ran in one for value in ran.left], 0.5)
    own = quantile([value for one in rounds for ran in one for value in ran.seconds], 0.5)
    if left > 0.2 * own + 5e-5:
        return "CHEAT-ASYNC", "work-on-other-streams", sentence + f" The device goes on for {say(left)} on streams " \
            "that are not joined."
    return "CHEAT-TIMER", "clock-refuted", sentence


def _slept(rounds: Rounds) -> Refusal | None:
    """Whether the first calls slept and later ones do not, which would cut a clock's repetitions."""
    calls = [(max(s, i), p) for one in rounds for ran in one
             for s, i, p in zip(ran.seconds, ran.issued, ran.processor)]
    sleeping = [seconds > SLEEP_SECONDS and used < SLEEP_SHARE * seconds for seconds, used in calls]
    first = next((n for n, slept in enumerate(sleeping) if not slept), len(sleeping))
    if first < SLEEPS or any(sleeping[first:]) or len(calls) - first < SLEEPS:
        return None
    slow, usual = quantile([s for s, _ in calls[:first]], 0.5), quantile([s for s, _ in calls[first:]], 0.5)
    if slow < 10 * usual:
        return None
    return Refusal("CHEAT-MODE", Finding(
        "sleeps-at-first", f"The first {first} timed calls sleep ({say(slow)} each, hardly any of it on the "
        f"processor), later ones take {say(usual)}.", "clock", "Remove what waits in the first calls.",
        evidence={"calls": first, "first_seconds": slow, "later_seconds": usual}))


def _below_floor(seconds: float, floor: float) -> Refusal:
    return Refusal("CHEAT-FLOOR", Finding(
        "below-the-floor", f"A call takes {say(seconds)}, {floor / seconds:.2g} times less than the {say(floor)} in "
        "which the device can move the least bytes, and do the least arithmetic, of this problem.", "clock",
        "Compute every output from every input in every call.",
        evidence={"seconds": seconds, "floor_seconds": floor, "times": floor / seconds}))
