"""Candidates that are given up by their first call: what they cost is counted, and no clock decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_contractions_tune import CPU, TILING, a_case
from torch import nn

from kernelwright.plan.records import KernelConfig
from kernelwright.roofline.devices import H200
from kernelwright.tune import contraction_first, contraction_rounds
from kernelwright.tune import contraction_trials as trials
from kernelwright.tune.accuracy import Error
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_first import CALLS, SAME_CALLS, affordable, hopeless
from kernelwright.tune.contraction_memory import Measured, recall
from kernelwright.tune.contraction_rounds import measure_cases
from kernelwright.tune.contraction_trials import Built


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


#: Candidates of several stages.
FORMS = tuple(KernelConfig("fp16", replace(TILING, stages=n)) for n in (2, 3, 4))
#: Calls of a form that is timed: its first, one for its errors, those for its bits, and one that is timed.
ALL = 3 + SAME_CALLS
Tried = Callable[..., tuple[Measured | None, list[int]]]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    """What is measured where the first calls of candidates take so long, each time one, and how often each form is
    called: nothing is compiled, and each is called once for its errors, for its bits, and once to be timed."""
    case = a_case(nn.Linear(24, 16), (40, 24), FORMS)
    launcher = SimpleNamespace(workspace_bytes=0, arguments=(), name="f")
    built = [Built(form, launcher, SimpleNamespace(f=form)) for form in FORMS]
    error = (Error(1e-7, 3e-7),)

    def measured(*first: tuple[float, ...], unstable: int = 0, **options: Any) -> tuple[Measured | None, list[int]]:
        calls: Counter[KernelConfig] = Counter()
        taken = {form: list(seconds) for form, seconds in zip(FORMS, first, strict=True)}

        def first_call(call, name, device):
            call()
            return next(taken[form].pop(0) for form in FORMS if trials.words(form) == name)

        def called(some):
            return [call() for call in some.values()]

        monkeypatch.setattr(trials, "_launch", lambda built, *rest: lambda: calls.update([built.config]))
        monkeypatch.setattr(trials, "first_call", first_call)
        monkeypatch.setattr(trials, "_errors", lambda case, some, *rest, **options: (
            called(some), dict.fromkeys((*some, trials._CALL, trials._GRANTED), error))[1])

        def repeats(call, *rest):
            before = calls.copy()
            for _ in range(SAME_CALLS):
                call()
            return not unstable or calls[FORMS[unstable - 1]] == before[FORMS[unstable - 1]]

        monkeypatch.setattr(trials, "repeats", repeats)
        monkeypatch.setattr(trials, "measure", lambda some, **options: (
            called(some), dict.fromkeys(some, SimpleNamespace(median=1.0)))[1])
        found = trials.try_out(case, "key", built, [], {}, CPU, H200, strict=False,
                               **{"budget_seconds": 1e-3} | options)
        return found, [calls[form] for form in FORMS]

    return measured


def test_a_form_many_times_slower_than_the_best_is_not_called_again(tried):
    found, calls = tried((0.001,), (2.0, 1.5), (0.002,))
    assert [t.config.tiling.stages for t in found.trials] == [2, 4] and calls == [ALL, 2, ALL]
    (why,) = found.failures
    assert "3 stages" in why and "1.5 s" in why and "0.001 s" in why


def test_what_a_device_loads_counts_for_nothing(tried):
    found, calls = tried((0.001,), (2.0, 0.001), (0.04,))
    assert len(found.trials) == 3 and not found.failures and calls == [ALL, ALL + 1, ALL]


def test_a_call_longer_than_what_is_left_is_not_repeated(tried):
    found, calls = tried((0.001,), (2.0,), (0.002,), ends=trials.clock() + 1.0)
    assert len(found.trials) == 2 and calls == [ALL, 1, ALL]


def test_what_there_is_time_for_is_timed(tried):
    """The fastest ones, and nothing of a contraction for which there is no time at all: it is told as late."""
    found, calls = tried((0.01,), (0.02,), (0.03,), ends=0.0, budget_seconds=0.035 * CALLS)
    assert [t.config.tiling.stages for t in found.trials] == [2, 3] and calls == [ALL, ALL, 1]
    assert "4 stages" in found.failures[0] and "no time" in found.failures[0]
    found, calls = tried((1.0,), (2.0,), (3.0,), ends=0.0)
    assert found is None and calls == [1, 1, 1]


@pytest.mark.parametrize(("write", "same"), [
    (lambda out, work, n: out.fill_(2.0), True),
    (lambda out, work, n: out.fill_(2.0)[7].fill_(float(n)), False),  # one element, another in each call
    (lambda out, work, n: out[1:].fill_(2.0), False),  # one that is never written
    (lambda out, work, n: out.copy_(work.view(torch.float32)[:8]), False),  # memory that nobody wrote
    (lambda out, work, n: out.copy_(torch.arange(8.0).roll(n)), False),  # the same numbers in another order
])
def test_whether_the_same_bits_come_again(write, same):
    out, work, calls = torch.empty(8), torch.empty(64, dtype=torch.uint8), iter(range(9))
    assert trials.repeats(lambda: write(out, work, next(calls)), [out], work) == same


def test_a_form_that_gives_other_bits_is_no_candidate(tried):
    found, calls = tried((0.001,), (0.001,), (0.001,), unstable=2)
    assert [t.config.tiling.stages for t in found.trials] == [2, 4] and calls == [ALL, ALL - 1, ALL]
    (why,) = found.failures
    assert "3 stages" in why and trials.UNSTABLE in why


def test_which_are_worth_more_calls():
    assert affordable({"a": 3.0, "b": 1.0, "c": 2.0}, 3.5 * CALLS) == ["b", "c"]
    assert affordable({"a": 3.0}, inf) == ["a"] and affordable({"a": 0.0}, 0.0) == ["a"] and not affordable({}, 1.0)
    assert hopeless(5.0, 1.0) and not hopeless(3.0, 1.0) and not hopeless(0.04, 1e-6) and not hopeless(9.0, inf)


def test_a_contraction_without_time_is_measured_in_the_next_run(monkeypatch):
    """It is no contraction whose operands do not fit the memory, and nothing of it is kept."""
    case = a_case(nn.Linear(24, 16), (40, 24), (KernelConfig("fp16", TILING),))
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=4)
    given: list[float] = []

    def try_out(case, key, *rest, ends, **options):
        given.append(ends)
        return None if key == "late" else Measured((), (), 1.0, ())

    monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.candidates, ()))
    monkeypatch.setattr(contraction_rounds, "build", lambda cases, build_all: [([], []) for _ in cases])
    monkeypatch.setattr(contraction_rounds, "try_out", try_out)
    found = measure_cases({"late": case, "timed": case}, {}, CPU, H200, budget, None, strict=False, seconds=50.0)
    assert set(found) == {"timed"} and recall("late") is None and recall("timed") is not None
    assert len(given) == 2 and all(contraction_first.clock() < ends < inf for ends in given)


def test_without_time_to_compile_all_what_is_there_is_tried_and_what_can_be_compiled(monkeypatch):
    """The most promising ones of the others are built in half of the time, and as those that are not may win nothing of
    it is kept for the next run."""
    others = [replace(TILING, stages=TILING.stages + more) for more in (1, -1)]
    case = a_case(nn.Linear(24, 16), (40, 24), tuple(KernelConfig("fp16", t) for t in (TILING, *others)))
    less = a_case(nn.Linear(24, 8), (40, 24), (KernelConfig("fp16", TILING),))
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=2, contraction_kernels=4)
    built: list[list[KernelConfig]] = []

    def build(cases, build_all):
        built.extend(list(case.candidates) for case in cases)
        return [([], []) for _ in cases]

    monkeypatch.setattr(contraction_rounds, "_TOGETHER", 1)
    monkeypatch.setattr(contraction_rounds, "clock", lambda: 0.0)  # a busy machine would use the half second up
    monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.candidates, ()))
    monkeypatch.setattr(contraction_rounds, "build", build)
    monkeypatch.setattr(contraction_rounds, "try_out", lambda *_, **__: Measured((), (), 1.0, ()))
    monkeypatch.setattr(contraction_rounds, "share_of_processors", lambda: 1)

    def measured(seconds: float, there: dict[str, float]) -> set[str]:
        built.clear()
        return set(measure_cases({"one": case, "less": less}, {}, CPU, H200, budget, None, strict=False,
                                 seconds=seconds, there=there))

    name = trials.launcher_name(case, case.candidates[1])
    assert name == trials.written(case, case.candidates[1])[1].name
    assert measured(0.5, {name: 1.0}) == {"one"} and built == [[case.candidates[1]]] and recall("one") is None
    assert measured(0.5, {}) == set() and not any(built)
    # Three texts of a second each are too many for 2.5 seconds; half of these hold the first one.
    assert measured(2.5, {"another": 1.0}) == {"one", "less"} and recall("one") is None
    assert built == [[case.candidates[0]], list(less.candidates)]
    assert measured(0.5, {name: 0.001}) == {"one", "less"} and built == [list(case.candidates), list(less.candidates)]
    assert measured(inf, {}) == {"one", "less"} and built == [list(case.candidates), list(less.candidates)]
    assert recall("one") is not None


def test_within_a_round_none_begins_that_would_end_late(monkeypatch):
    """What was compiled together is tried one by one, and one takes as long as the longest before it did."""
    now = [0.0]
    cases = {str(width): a_case(nn.Linear(24, width), (40, 24), (KernelConfig("fp16", TILING),))
             for width in (8, 16, 32, 64)}

    def try_out(case, key, *_, **__):
        now[0] += 10.0
        return Measured((), (), 1.0, ())

    monkeypatch.setattr(contraction_rounds, "clock", lambda: now[0])
    monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.candidates, ()))
    monkeypatch.setattr(contraction_rounds, "build", lambda cases, build_all: [([], []) for _ in cases])
    monkeypatch.setattr(contraction_rounds, "try_out", try_out)
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=4)
    for seconds, found in ((25.0, {"8", "16"}), (inf, set(cases))):
        now[0] = 0.0
        assert set(measure_cases(cases, {}, CPU, H200, budget, None, strict=False, seconds=seconds)) == found
