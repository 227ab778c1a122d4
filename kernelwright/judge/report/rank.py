"""Ranks of the candidates that passed and were timed: within their class, with ties as ties.

**Classes.** A candidate is compared with its like only. *Own kernels or library-backed*: by the share of its time that
is spent in kernels of its own, measured, never by what its text contains. The border is 5 %: above the 1 %
below which times tie, so that a kernel run for show costs more time than it can hide, and below the share that an
honest epilogue beside a library's matrix product has. Where the share could not be measured, that is a class, too: no
one is taken at their word. *Precision*: float32, tf32 or 16-bit, since fewer digits buy time. *Launched as a graph*,
where a profile shows that: what stands between kernels is then another thing to be faster at.

**Ties.** Two candidates are compared over the rounds in which both were timed, one after the other, so that what a
round does to all of them (clocks, temperature, neighbours) cancels: the median of the rounds' ratios with a bootstrap
interval that resamples rounds (:func:`kernelwright.timing.statistics.paired_ratio`). One is slower than the other only
if the interval lies above 1 *and* the ratio is at least 1.01. Among many candidates some pair differs by chance, so the
wider side of the 95 % interval of one pair is widened further, in the logarithm as that of a normal distribution, until
95 % hold for all pairs of the class together (Bonferroni). Candidates without common rounds are compared by their
speed-ups over eager, and where the samples are not those of the clock that counts, by the intervals of their times; the
ends of two intervals are then divided. Whoever was timed in fewer than five rounds is not shown to be slower than
anybody.

**Groups.** "Cannot be told apart" is not transitive, ranks are. Candidates are sorted by their time; the first opens a
group, each next one joins it unless it is slower than the group's *fastest*, and else opens the next group. Those of
one group share its rank, and the next group's rank counts them: 1, 1, 3. So equal ranks mean: not shown to be slower
than the best of this rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from kernelwright.judge.records import CandidateResult, CandidateTiming
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.timing.statistics import CONFIDENCE, Ratio, paired_ratio

#: Share of its time in its own kernels from which a candidate is no longer library-backed.
LEAST_OWN_SHARE = 0.05
#: Times that differ by less are a tie, however narrow the interval: beyond what a clock repeats from day to day.
LEAST_DIFFERENCE = 0.01
#: Fewer common rounds say nothing about a median's spread.
LEAST_ROUNDS = 5
#: In place of a time of zero, which only a coarse clock gives.
_TINY = 1e-12
OWN, LIBRARY, UNKNOWN = "own kernels", "library-backed", "share of own kernels not measured"


def rank(results: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return the results in the same order, those that passed and have a time with ``rank`` and ``rank_class``."""
    classes: dict[str, list[int]] = {}
    for index, result in enumerate(results):
        if result.timing is not None and VERDICTS[result.verdict].passed:
            classes.setdefault(class_of(result), []).append(index)
    ranked = [replace(result, rank=None, rank_class=None) for result in results]
    for name, members in classes.items():
        timings = [(results[i].timing, results[i].file, i) for i in members]
        ordered = sorted(((t, file, i) for t, file, i in timings if t is not None), key=lambda e: (e[0].seconds, e[1]))
        positions = _ranks([timing for timing, _, _ in ordered])
        for (_, _, index), position in zip(ordered, positions):
            ranked[index] = replace(ranked[index], rank=position, rank_class=name)
    return ranked


def class_of(result: CandidateResult) -> str:
    """The class within which a timed candidate is ranked, in words: ``own kernels, float32``."""
    share = result.own_share
    kernels = UNKNOWN if share is None else OWN if share >= LEAST_OWN_SHARE else LIBRARY
    graph = ", launched as a graph" if result.timing is not None and result.timing.graph else ""
    return f"{kernels}, {result.precision or 'precision not measured'}{graph}"


def is_faster(speedup: Ratio) -> bool:
    """Whether a speed-up over eager is one: beyond its interval and beyond what counts as a difference."""
    return speedup.low > 1 and speedup.value >= 1 + LEAST_DIFFERENCE


def is_slower(speedup: Ratio) -> bool:
    """Whether a speed-up over eager is a slow-down beyond its interval and beyond what counts as a difference."""
    return speedup.high < 1 and speedup.value <= 1 / (1 + LEAST_DIFFERENCE)


def _ranks(timings: Sequence[CandidateTiming]) -> list[int]:
    """Ranks from 1 of timings that are sorted by their time."""
    widening = _widening(len(timings) * (len(timings) - 1) // 2)
    ranks: list[int] = []
    best = 0
    for index, timing in enumerate(timings):
        if index and _shown_slower(timing, timings[best], widening):
            best = index
        ranks.append(best + 1)
    return ranks


def _widening(pairs: int) -> float:
    """By what factor a pair's interval grows so that the intervals of all pairs hold together."""
    tail = (1 - CONFIDENCE) / 2
    return NormalDist().inv_cdf(1 - tail / max(1, pairs)) / NormalDist().inv_cdf(1 - tail)


def _shown_slower(timing: CandidateTiming, best: CandidateTiming, widening: float) -> bool:
    if min(len(timing.samples), len(best.samples)) < LEAST_ROUNDS:
        return False
    ratio = time_ratio(timing, best)
    if ratio.value < 1 + LEAST_DIFFERENCE or ratio.low <= 1:
        return False
    # The resampled medians of few rounds lie on a few values, so either side may come out too narrow.
    side = max(math.log(ratio.value / ratio.low), math.log(ratio.high / ratio.value))
    return math.log(ratio.value) > widening * side


def time_ratio(timing: CandidateTiming, best: CandidateTiming) -> Ratio:
    """How many times the time of ``best`` the other takes, with its 95 % interval."""
    if timing.samples_count and best.samples_count:
        times, best_times = timing.by_round, best.by_round
        common = sorted(times.keys() & best_times.keys())
        if len(common) >= LEAST_ROUNDS:
            # The ratio is taken in each round: between two medians, what rounds share would cancel in part only.
            ratios = [max(times[n], _TINY) / max(best_times[n], _TINY) for n in common]
            return paired_ratio("candidate", "best", ratios, [1.0] * len(ratios))
        if timing.speedup is not None and best.speedup is not None:
            ours, theirs = timing.speedup, best.speedup
            return _quotient((theirs.value, theirs.low, theirs.high), (ours.value, ours.low, ours.high))
    return _quotient((timing.seconds, *timing.interval), (best.seconds, *best.interval))


def _quotient(above: tuple[float, float, float], below: tuple[float, float, float]) -> Ratio:
    """The quotient of two values that are given with their intervals: the widest that fits both."""
    value, low, high = (max(number, _TINY) for number in above)
    by, by_low, by_high = (max(number, _TINY) for number in below)
    return Ratio("candidate", "best", value / by, low / by_high, high / by_low, 0)
