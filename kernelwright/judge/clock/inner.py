"""The inner clock: what a worker says of its calls. It is precise, and can be forged."""

from __future__ import annotations

from kernelwright.judge.clock.outer import Ran, Rounds, Value
from kernelwright.processors import processors
from kernelwright.timing.statistics import quantile

#: The inner clock may be below what the outer one shows by these seconds per call, beside a share of it.
TOLERANCE_SECONDS = {"cpu": 30e-6, "cuda": 8e-6}


def told_seconds(ran: Ran, kind: str, flush: float) -> float:
    """Seconds of a batch by the worker's own figures, as the outer clock would show them. On a GPU the host's part
    comes on top of the device's time, as far as no flush of ``flush`` seconds hides it, and what other streams go on
    for."""
    if kind == "cpu":
        return sum(ran.seconds)
    beside = [max(0.0, i - flush) if ran.cold else i + e for i, e in zip(ran.issued, ran.left)]
    return sum(ran.seconds) + sum(beside)


def claimed_seconds(rounds: Rounds, said: Value, *, cold: bool) -> float:
    """What a call takes by the worker's own figures: a mean, as a slope would show it."""
    means = [said(ran) / len(ran.seconds) for one in rounds for ran in one if ran.cold is cold]
    return quantile(means, 0.5) if means else 0.0


def row_seconds(rounds: Rounds) -> float:
    """The median of a worker's own seconds of calls in a row; zero where there is none."""
    each = [s for one in rounds for ran in one if not ran.cold for s in ran.seconds]
    return quantile(each, 0.5) if each else 0.0


def lumps(rounds: Rounds, kind: str, *, undelayed: bool = False) -> tuple[list[bool], list[float], list[float]]:
    """For each batch of some calls: whether one does more than all others together, their mean and their median.

    ``undelayed``: also if as much as delays may have added is no work. A thread that waits by turning for one that has
    lost its processor works as long as that waits.
    """
    found, means, medians = [], [], []
    for ran in (ran for one in rounds for ran in one if len(ran.seconds) >= 4):
        work = ran.seconds if kind == "cuda" else ran.processor
        median, most = quantile(work, 0.5), max(work)
        rest = sum(work) - most
        if undelayed and kind == "cpu":
            most -= ran.delayed * max(1, processors() - 1)
        found.append(most > 0.6 * (most + rest) and most > 5 * median + TOLERANCE_SECONDS[kind])
        means.append(sum(work) / len(work))
        medians.append(median)
    return found, means, medians
