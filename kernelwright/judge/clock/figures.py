"""Two clocks: what a worker measures beside its calls, and what the judge's own watch allows.

The inner clock is precise and can be forged; the outer one, the slope of wall time over two batch lengths less that of
a null candidate, cannot. A candidate is timed by the inner clock where the outer one agrees, else by the outer one, and
where the two are far apart it is refused. Like is compared with like:

- *cold* batches flush the caches before each call; on a GPU they keep the device busy until the host is ahead, so their
  slope is the device's time. Work on a stream that is not joined would hide behind the flush, so
- batches *in a row* have no flush: their slope is device and host together, and it is held against a worker's own mean
  of device, host and what other streams go on for;
- and the time that the kernel says was spent on processors holds on a busy machine, too.

On a CPU the flush itself takes some processes longer than others, in all of their batches, by where their memory lies.
What that may be accuses nobody: calls in a row, which have no flush, tell then.

Load must not accuse, and must not let forged times count. An accusation has to exceed what the outer clock shows of the
model's own worker in the same rounds, whose clock is honest, and so has a doubt on a CPU; on a doubt the outer clock's
time counts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from kernelwright.judge.clock.inner import TOLERANCE_SECONDS, claimed_seconds, lumps, row_seconds, told_seconds
from kernelwright.judge.clock.outer import (
    COLD,
    LEAST_ROUNDS,
    LONGER,
    ROW,
    Outer,
    Rounds,
    Value,
    outers,
    resolution,
    slope,
    undelayed,
    undisturbed,
    wall,
)
from kernelwright.judge.records import CandidateTiming, Finding, Refusal
from kernelwright.report.units import seconds as say
from kernelwright.timing.statistics import median_interval, paired_ratio, quantile

_ON_FLUSHED = (COLD, LONGER[COLD])
LEAST = "the least that its longest batches took"
#: From so many rounds on forged clocks are told.
TELLING_ROUNDS = 3
#: The inner clock may be below what the outer one shows by this share.
AGREEMENT = 0.10
#: What the outer clock shows at least, over all rounds, is as good as this where little was told.
FINEST_SECONDS = 5e-6
#: Beyond these the two clocks do not just disagree: somebody tells times that were not.
FORGED_FACTOR, FORGED_SECONDS = 1.5, 4.0
#: By so much of its time a CPU's flush may take one process longer than another. Measured of six processes that flush
#: 64 MB in turn, on an idle machine, four times: their medians were 0.11 to 0.29 apart.
FLUSH_SHARE = 0.3
#: A call that sleeps: so long, and so little of it on the processor; so many of them, first of all.
SLEEP_SECONDS, SLEEP_SHARE, SLEEPS = 0.1, 0.1, 3
#: Reading a page of memory from a disk takes less than this.
FAULT_SECONDS = 0.02


def decide(name: str, everything: Rounds, null: Rounds, eager: CandidateTiming | None, floor: float | None, kind: str,
           *, trusted: bool = False, control: Rounds = (), handout: float = 0.0
           ) -> tuple[CandidateTiming | Refusal, tuple[Finding, ...]]:
    """The time that counts, or a refusal; with findings beside it.

    ``everything``, ``null`` and ``control`` are the batches by round, the first of which is not counted: of the
    candidate, of one that does nothing, and of the model's own worker, whose clock is believed. ``kind`` is cpu or
    cuda. ``trusted``: it is that worker. ``handout``: seconds in which a CPU's system hands out memory for the outputs
    of a call.
    """
    rounds, null, control = everything[1:], null[1:], control[1:]
    if not rounds:
        return Refusal("JUDGE-ERROR", Finding("no-round", "No timed round was finished.", "clock")), ()
    findings: list[Finding] = []
    samples = tuple(quantile([s for ran in one if ran.cold for s in ran.seconds], 0.5) for one in rounds)
    inner, interval = quantile(samples, 0.5), median_interval(samples)
    if not trusted and (refused := _uneven(rounds, control, kind)):
        return refused, ()
    margin = TOLERANCE_SECONDS[kind]
    flush = quantile([s for one in null if (s := slope(one, wall, cold=True)) is not None] or [0.0], 0.5)
    said = partial(told_seconds, kind=kind, flush=flush)
    ways = outers(rounds, null, control, kind, said)
    claims = {way: max(interval[1], claimed_seconds(rounds, said, cold=way in _ON_FLUSHED),
                       found.said * (kind == "cpu")) for way, found in ways.items()}
    claims[LEAST] = max(interval[1], claimed_seconds(rounds, said, cold=all(ran.cold for ran in rounds[0])))
    unlike = FLUSH_SHARE * flush if kind == "cpu" else 0.0
    if not trusted and (refused := _refuted(rounds, ways, claims, inner, margin, unlike)):
        sure = _refuted(rounds, outers(rounds, null, control, kind, said, undelayed), claims, inner, margin, unlike)
        return sure or _doubtful(refused), ()
    slopes = sorted((ways[way] for way in (COLD, ROW) if way in ways), key=lambda found: found.high - found.low)
    seconds, note = inner, ""
    if not trusted and slopes:
        least = _least(rounds, null, control, eager, said) if kind == "cpu" else None
        counts, note, finding = _disagree(rounds, ways, claims, least, inner, kind, unlike) or _unsupported(
            rounds, control, ways, kind, interval[1], flush, handout) or (None, "", None)
        findings += [finding] if finding is not None else []
        if counts is not None and counts.value > inner:
            samples = tuple(max(1e-9, value) for value in counts.by_round)
            seconds, (low, high) = max(counts.value, quantile(samples, 0.5)), median_interval(samples)
            interval = low, max(high, seconds)
    finest = resolution(null, control, said) if kind == "cpu" and eager is not None and not trusted else 0.0
    if eager is not None and finest > margin and seconds < (limit := min(finest, eager.inner)):
        samples = tuple(max(limit, value) for value in samples)
        seconds, interval = max(limit, quantile(samples, 0.5)), median_interval(samples)
        note = f"at least: the machine is so busy that the judge's clock tells nothing below {say(finest)} a call"
        findings.append(Finding("clock-not-supported", f"The time is {note}.", "clock"))
    if not trusted and (refused := _slept(everything, control)):
        return refused, ()
    if floor and interval[1] < floor:
        return _below_floor(seconds, floor), ()
    if len(rounds) < LEAST_ROUNDS:
        note = "; ".join(filter(None, (note, _few(len(rounds)))))
    speedup = None
    if eager is not None and len(rounds) >= TELLING_ROUNDS:  # one or two have no spread that would say anything
        speedup = paired_ratio("eager", name, eager.samples, samples)
    outer = slopes[0].value if slopes and slopes[0].value > 0 else None
    return CandidateTiming(seconds, interval, inner, outer, samples, speedup, floor, floor / seconds if floor else None,
                           None, note, tuple(range(1, len(samples) + 1))), tuple(findings)


def _doubtful(refused: Refusal) -> Refusal:
    """What is said instead of an accusation that rests on what a busy machine may have done."""
    found = refused.finding
    return Refusal("JUDGE-BUSY", replace(
        found, sentence=f"{found.sentence} Programs waited for processors meanwhile, so that this says nothing.",
        fix="Judge it once more while the machine does nothing else."))


def _apart(claim: float, seen: float, way: str) -> str:
    return f"The worker's clock says {say(claim)} a call, the judge's own at least {say(seen)} ({way})."


def _evidence(inner: float, outer: float, low: float, way: str) -> dict[str, Any]:
    return {"inner_seconds": inner, "outer_seconds": outer, "outer_low": low, "seen_by": way}


def _refuted(rounds: Rounds, ways: dict[str, Outer], claims: dict[str, float], inner: float, margin: float,
             unlike: float) -> Refusal | None:
    """Whether a worker tells times that were not: what the outer clock shows is far more than both the worker's usual
    figures and those of the same rounds, by more than load makes of the model's, whose clock is honest, and by more
    than the ``unlike`` seconds that flushes of two processes may be apart."""
    beyond = {way: min(o.low - claims[way], o.unexplained) - o.noise - unlike * (way in _ON_FLUSHED)
              - (FORGED_FACTOR - 1) * claims[way] - FORGED_SECONDS * margin for way, o in ways.items()}
    worst = max(beyond, key=lambda way: beyond[way], default=None)
    if worst is None or beyond[worst] <= 0 or len(rounds) < TELLING_ROUNDS:
        return None
    low, value = ways[worst].low, max(found.value for found in ways.values())
    verdict, found, sentence = _forged(rounds, _apart(claims[worst], low, worst))
    return Refusal(verdict, Finding(found, sentence, "clock", "Do all of a call's work before it returns, on the "
                                    "current stream.", evidence=_evidence(inner, value, low, worst)))


def _disagree(rounds: Rounds, ways: dict[str, Outer], claims: dict[str, float], least: Outer | None, inner: float,
              kind: str, unlike: float) -> tuple[Outer, str, Finding] | None:
    """What counts instead of the inner clock's time where the outer clock shows more, with a note and a finding.

    Where that may be the flush, by up to ``unlike`` seconds, what the longest batches show (``least``) counts, which
    have none.
    """
    margin = TOLERANCE_SECONDS[kind]
    excess = {way: o.low - o.noise * (kind == "cpu") - claims[way] * (1 + AGREEMENT) - margin
              for way, o in ways.items()}
    worst = max(excess, key=lambda way: excess[way])
    shown = [ways[way] for way in ways if excess[way] > (unlike if way in _ON_FLUSHED else 0.0)]
    claim, seen, way = claims[worst], ways[worst].low, worst
    if least is not None:
        own = max(least.said, claims[LEAST])
        explained = excess[worst] <= 0 and least.low - least.noise <= _explained(own, margin)
        if not shown and (explained or least.value <= _explained(inner, margin)):
            return None
        if excess[worst] <= 0:
            claim, seen, way = own, least.low, LEAST
        shown.append(least)
    if not shown:
        return None
    counts = max(shown, key=lambda found: found.value)
    return counts, "by the judge's own clock, which the worker's does not explain", Finding(
        "clocks-disagree", _apart(claim, seen, way) + " The judge's counts.", "clock",
        evidence=_evidence(inner, counts.value, seen, way))


def _explained(said: float, margin: float) -> float:
    """The most seconds that the outer clock may show at least where a worker says ``said``: the usual margin is much
    for who says that next to nothing was done."""
    return said * (1 + AGREEMENT) + min(margin, max(said, FINEST_SECONDS))


def _least(rounds: Rounds, null: Rounds, control: Rounds, eager: CandidateTiming | None, said: Value) -> Outer | None:
    """What the longest batches show; with what a call then takes on flushed caches, where the worker's own figures for
    those are not believed: more by as much as the model takes more there."""
    found = undisturbed(rounds, null, control, said)
    if found is None:
        return None
    row = any(not ran.cold for ran in rounds[0])
    more = max(0.0, eager.inner - claimed_seconds(control, said, cold=False)) if row and control and eager else 0.0
    return replace(found, value=found.value + more, by_round=tuple(value + more for value in found.by_round))


def _few(rounds: int) -> str:
    """What so few rounds leave unsaid."""
    what = "to rank it behind others" if rounds >= TELLING_ROUNDS else "for a speed-up, and to rank it behind others"
    return f"only {rounds} round{'s' * (rounds > 1)} fitted the budget: too few {what}"


def _unsupported(rounds: Rounds, control: Rounds, ways: dict[str, Outer], kind: str, cold: float, flush: float,
                 handout: float) -> tuple[Outer, str, Finding] | None:
    """What counts where the inner clock's time, ``cold``, cannot be held against the outer one, and why.

    On a CPU memory that is handed out for the first time makes calls longer in long batches, whose outputs are all
    kept: by ``handout`` seconds, or by as much as the model's take longer there, this says nothing.
    """
    why, margin = "", TOLERANCE_SECONDS[kind]
    if kind == "cuda":
        issued = quantile([i for one in rounds for ran in one if ran.cold for i in ran.issued], 0.5)
        if issued - flush > AGREEMENT * cold + margin:
            why = f"the host takes {say(issued)} to launch a call, longer than a flush hides."
        # Where the host is not ahead, the device's clock goes on while it launches.
        row = [ran for one in rounds for ran in one if not ran.cold]
        each = [max(0.0, s - i) for ran in row for s, i in zip(ran.seconds, ran.issued)]
        warm, usual, counting = quantile(each, 0.5) if each else 0.0, 0.0, list(ways.values())
    else:
        shorter = [one[:-1] for one in control]
        warm, usual = row_seconds(rounds), max(handout, row_seconds(control) - row_seconds(shorter))
        counting = [found for way, found in ways.items() if way not in _ON_FLUSHED]
    if not why and warm - usual > FORGED_FACTOR * cold + margin:
        whose = "the device " if kind == "cuda" else ""
        why = f"calls in a row take {whose}{say(warm)}, longer than those on flushed caches, {say(cold)}."
    return (max(counting, key=lambda found: found.value), "by the judge's own clock: " + why,
            Finding("clock-not-supported", why, "clock")) if why else None


def _uneven(rounds: Rounds, control: Rounds, kind: str) -> Refusal | None:
    """Whether in most batches one call works and the others hardly do, which a median would not show.

    On a CPU by the processor's time: a call may take long because something else ran meanwhile. A thread that waits for
    another one by turning works as well, so the model's own calls must not show the same.
    """
    found, means, medians = lumps(rounds, kind)
    usual = lumps(control, kind)[0]
    if len(found) < 4 or sum(found) < 0.75 * len(found) or sum(usual) > 0.25 * len(usual):
        return None
    mean, median = quantile(means, 0.5), quantile(medians, 0.5)
    refused = Refusal("CHEAT-DEFERRED", Finding(
        "one-call-works", f"In {sum(found)} of {len(found)} batches one call does more than all others together: half "
        f"of the calls take at most {say(median)}, the mean is {say(mean)}.", "clock",
        "Do each call's work in that call.", evidence={"median_seconds": median, "mean_seconds": mean}))
    sure = lumps(rounds, kind, undelayed=True)[0]
    return refused if sum(sure) >= 0.75 * len(sure) else _doubtful(refused)


def _forged(rounds: Rounds, sentence: str) -> tuple[str, str, str]:
    """(verdict, kind, sentence) for clocks that are far apart, by what else the worker showed."""
    left = quantile([value for one in rounds for ran in one for value in ran.left], 0.5)
    own = quantile([value for one in rounds for ran in one for value in ran.seconds], 0.5)
    if left > 0.2 * own + 5e-5:
        return "CHEAT-ASYNC", "work-on-other-streams", sentence + f" The device goes on for {say(left)} on streams " \
            "that are not joined."
    return "CHEAT-TIMER", "clock-refuted", sentence


def _slept(rounds: Rounds, control: Rounds) -> Refusal | None:
    """Whether the first calls slept and later ones do not, which would cut a clock's repetitions. Where the model's own
    calls seem to sleep, the machine stands still."""
    calls, usual = ([(max(s, i), p) for one in each for ran in one
                     for s, i, p in zip(ran.seconds, ran.issued, ran.processor)] for each in (rounds, control))
    sleeping, still = ([seconds > SLEEP_SECONDS and used < SLEEP_SHARE * seconds for seconds, used in each]
                       for each in (calls, usual))
    if sum(still) >= SLEEPS:
        return None
    first = next((n for n, slept in enumerate(sleeping) if not slept), len(sleeping))
    if first < SLEEPS or any(sleeping[first:]) or len(calls) - first < SLEEPS:
        return None
    slow, usual = quantile([s for s, _ in calls[:first]], 0.5), quantile([s for s, _ in calls[first:]], 0.5)
    if slow < 10 * usual:
        return None
    refused = Refusal("CHEAT-MODE", Finding(
        "sleeps-at-first", f"The first {first} timed calls sleep ({say(slow)} each, hardly any of it on the "
        f"processor), later ones take {say(usual)}.", "clock", "Remove what waits in the first calls.",
        evidence={"calls": first, "first_seconds": slow, "later_seconds": usual}))
    waited, before = 0.0, 0
    for ran in (ran for one in rounds for ran in one):
        waited += (ran.delayed + FAULT_SECONDS * ran.faults) * (before < first)
        before += len(ran.seconds)
    return refused if waited < 0.5 * slow * first else _doubtful(refused)


def _below_floor(seconds: float, floor: float) -> Refusal:
    return Refusal("CHEAT-FLOOR", Finding(
        "below-the-floor", f"A call takes {say(seconds)}, {floor / seconds:.2g} times less than the {say(floor)} in "
        "which the device can move the least bytes, and do the least arithmetic, of this problem.", "clock",
        "Compute every output from every input in every call.",
        evidence={"seconds": seconds, "floor_seconds": floor, "times": floor / seconds}))
