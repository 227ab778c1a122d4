"""Ranks: what is equal ties, what differs is ordered, and nobody is compared with another class."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from kernelwright.judge.records import CandidateResult, CandidateTiming
from kernelwright.judge.report.rank import class_of, is_faster, is_slower, rank
from kernelwright.timing.statistics import Ratio, median_interval, paired_ratio

ROUNDS = 30


def simulated(factors: dict[str, float], seed: int, *, rounds: int = ROUNDS, noise: float = 0.01
              ) -> dict[str, CandidateTiming]:
    """Interleaved times of callables that take ``factors`` of 1 ms: 1 % log-normal noise of each time, a drift of up to
    5 % that a round gives to all, and in one time of 20 an outlier of up to 50 %. Eager takes 1.3 ms."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    names = ["eager baseline", *factors]
    base = torch.tensor([1.3e-3, *(1e-3 * factor for factor in factors.values())], dtype=torch.float64)
    drift = 1 + 0.05 * torch.sin(torch.arange(rounds) / rounds * math.tau + seed) + 0.01 * normal(rounds)
    times = base[:, None] * drift * torch.exp(noise * normal(len(names), rounds))
    uniform = torch.rand(2, len(names), rounds, generator=generator, dtype=torch.float64)
    times = torch.where(uniform[0] < 0.05, times * (1 + 0.5 * uniform[1]), times).tolist()
    made = {}
    for name, samples in zip(names, times):
        median = float(torch.tensor(samples, dtype=torch.float64).median())
        speedup = paired_ratio("eager", name, times[0], samples) if name == "eager" else None
        made[name] = CandidateTiming(median, (min(samples), max(samples)), median, median, tuple(samples), speedup)
    return made


def candidate(file: str, timing: CandidateTiming | None = None, *, verdict: str = "OK", share: float | None = 1.0,
              precision: str | None = "float32") -> CandidateResult:
    timing = dataclasses.replace(timing, own_share=share) if timing is not None else None
    return CandidateResult(file, verdict, "reason", timing=timing, precision=precision)


def ranks(timings: dict[str, CandidateTiming]) -> dict[str, int | None]:
    return {result.file: result.rank for result in rank([candidate(name, t) for name, t in timings.items()])}


def steady(seconds: float, *, count: int = ROUNDS, first: int | None = None, **changes: object) -> CandidateTiming:
    """Times that alternate by 0.1 % around ``seconds``."""
    samples = tuple(seconds * (1 + (0.001 if i % 2 else -0.001)) for i in range(count))
    rounds = tuple(range(first, first + count)) if first is not None else ()
    plain = CandidateTiming(seconds, (0.999 * seconds, 1.001 * seconds), seconds, seconds, samples, None, rounds=rounds)
    return dataclasses.replace(plain, **changes)


# ---- test 20 of the catalogue: the ranking is stable -----------------------------------------------------


def test_copies_tie_and_gaps_are_ordered() -> None:
    """A, a copy of it, A + 2 %, A + 10 % and the eager model as a candidate, 60 times."""
    repetitions = 60
    tied = ordered = apart = faster = 0
    for seed in range(repetitions):
        times = simulated({"a": 1.0, "copy": 1.0, "two": 1.02, "ten": 1.1, "eager": 1.3}, seed)
        del times["eager baseline"]
        found = ranks(times)
        tied += found["a"] == found["copy"]
        ordered += max(found["a"], found["copy"]) < found["ten"] < found["eager"]
        apart += found["two"] > min(found["a"], found["copy"])
        faster += is_faster(times["eager"].speedup) or is_slower(times["eager"].speedup)
    assert tied >= 0.95 * repetitions
    assert ordered >= 0.99 * repetitions
    assert faster == 0  # eager against eager
    assert apart >= 0.5 * repetitions  # 2 % is seen where noise is 1 %, if not always


def test_copies_tie_where_noise_is_above_the_least_difference() -> None:
    """With 4 % noise the 1 % rule does not help: the interval alone must hold, for eight copies together."""
    together = pairs = 0
    for seed in range(30):
        times = simulated({f"copy {i}": 1.0 for i in range(8)}, 1000 + seed, noise=0.04)
        del times["eager baseline"]
        together += set(ranks(times).values()) == {1}
        pairs += len(set(ranks({name: times[name] for name in ("copy 0", "copy 1")}).values())) == 1
    assert together >= 28 and pairs >= 28


def test_without_pairing_drift_would_hide_what_is_told_apart() -> None:
    """A drift of 30 % in common: the two medians' own intervals overlap, the paired rounds do not."""
    drift = [1 + 0.3 * math.sin(i) for i in range(ROUNDS)]
    jitter = [1 + 0.002 * math.cos(5 * i) for i in range(ROUNDS)]
    samples = {"a": tuple(1e-3 * d for d in drift), "b": tuple(1.04e-3 * d * j for d, j in zip(drift, jitter))}
    times = {}
    for name, values in samples.items():
        median = sorted(values)[ROUNDS // 2]
        times[name] = CandidateTiming(median, median_interval(values), median, None, values, None)
    assert times["a"].interval[1] > times["b"].interval[0]
    assert ranks(times) == {"a": 1, "b": 2}


# ---- rules --------------------------------------------------------------------------------------------


def test_a_difference_below_one_percent_ties_however_sure() -> None:
    assert ranks({"a": steady(1e-3), "b": steady(1.008e-3)}) == {"a": 1, "b": 1}
    assert ranks({"b": steady(1.02e-3), "a": steady(1e-3)}) == {"a": 1, "b": 2}


def test_groups_are_held_against_their_fastest_and_ranks_count_their_members() -> None:
    """b ties with a, c with b but not with a: c opens a group, which d joins."""
    found = ranks({"a": steady(1e-3), "b": steady(1.008e-3), "c": steady(1.015e-3), "d": steady(1.02e-3),
                   "e": steady(2e-3)})
    assert found == {"a": 1, "b": 1, "c": 3, "d": 3, "e": 5}


def test_the_order_of_candidates_does_not_matter() -> None:
    times = simulated({"a": 1.0, "b": 1.0, "c": 1.03, "d": 1.5}, 3)
    del times["eager baseline"]
    expected = ranks(times)
    for order in itertools.permutations(times):
        assert ranks({name: times[name] for name in order}) == expected


def test_classes_are_ranked_apart() -> None:
    fast, slow = steady(1e-3), steady(2e-3)
    results = rank([
        candidate("own slow", slow), candidate("own", fast), candidate("library", fast, share=0.04),
        candidate("hybrid", steady(3e-3), share=0.06), candidate("half", fast, precision="16-bit"),
        candidate("tf32", slow, precision="tf32"), candidate("unknown", fast, share=None),
        candidate("limited", steady(4e-3), verdict="OK-BUT"), candidate("graph", steady(5e-3, graph=True)),
    ])
    assert results[0].file == "own slow"  # the order given
    assert {result.file: (result.rank_class, result.rank) for result in results} == {
        "own": ("own kernels, float32", 1), "own slow": ("own kernels, float32", 2),
        "hybrid": ("own kernels, float32", 3), "limited": ("own kernels, float32", 4),
        "library": ("library-backed, float32", 1), "half": ("own kernels, 16-bit", 1),
        "tf32": ("own kernels, tf32", 1), "unknown": ("share of own kernels not measured, float32", 1),
        "graph": ("own kernels, float32, launched as a graph", 1)}
    assert class_of(candidate("x", fast, precision=None)) == "own kernels, precision not measured"


@pytest.mark.parametrize("verdict", ["WRONG-NUMERIC", "CHEAT-TIMER", "JUDGE-UNFIT", "PROBLEM-TRIVIAL"])
def test_only_what_passed_has_a_rank(verdict: str) -> None:
    results = rank([candidate("wrong", steady(1e-4), verdict=verdict), candidate("right", steady(1e-3)),
                    candidate("not timed")])
    assert [(result.rank, result.rank_class) for result in results] == [
        (None, None), (1, "own kernels, float32"), (None, None)]


def test_a_rank_given_before_is_not_kept() -> None:
    stale = dataclasses.replace(candidate("a"), rank=1, rank_class="own kernels, float32")
    assert rank([stale])[0].rank is None and rank([]) == []


def test_other_rounds_are_compared_by_their_speed_ups() -> None:
    """Two batches, the second on a device that became 10 % slower: eager says so, and the two tie."""
    first = steady(1e-3, first=0, speedup=Ratio("eager", "a", 2.0, 1.99, 2.01, ROUNDS))
    second = steady(1.1e-3, first=100, speedup=Ratio("eager", "b", 2.0, 1.99, 2.01, ROUNDS))
    assert ranks({"a": first, "b": second}) == {"a": 1, "b": 1}
    slower = dataclasses.replace(second, speedup=Ratio("eager", "b", 1.5, 1.49, 1.51, ROUNDS))
    assert ranks({"a": first, "b": slower}) == {"a": 1, "b": 2}
    # Without common rounds and speed-ups, the intervals of the times decide.
    assert ranks({"a": steady(1e-3, first=0), "b": steady(1.1e-3, first=100)}) == {"a": 1, "b": 2}


def test_times_that_the_outer_clock_replaced_do_not_rank() -> None:
    """Where the inner clock is not believed, its rounds are not either; the outer clock's own are."""
    forged = dataclasses.replace(steady(1e-4), seconds=3e-3, interval=(2.8e-3, 3.2e-3), outer=3e-3)
    assert not forged.samples_count
    assert ranks({"forged": forged, "honest": steady(1e-3)}) == {"honest": 1, "forged": 2}
    near = dataclasses.replace(steady(1e-4), seconds=1.05e-3, interval=(0.9e-3, 1.2e-3), outer=1.05e-3)
    assert ranks({"near": near, "honest": steady(1e-3)}) == {"honest": 1, "near": 1}
    outer = dataclasses.replace(steady(1.05e-3), inner=1e-4, interval=(0.9e-3, 1.2e-3))
    assert outer.samples_count
    assert ranks({"outer": outer, "honest": steady(1e-3)}) == {"honest": 1, "outer": 2}


def test_a_tie_with_eager_is_neither_faster_nor_slower() -> None:
    sure = Ratio("eager", "a", 1.005, 1.004, 1.006, ROUNDS)
    assert not is_faster(sure) and not is_slower(sure)
    assert is_faster(Ratio("eager", "a", 1.02, 1.01, 1.03, ROUNDS))
    assert not is_faster(Ratio("eager", "a", 1.2, 0.99, 1.4, ROUNDS))
    assert is_slower(Ratio("eager", "a", 0.9, 0.88, 0.92, ROUNDS))
    assert not is_slower(Ratio("eager", "a", 0.9, 0.8, 1.01, ROUNDS))
