"""Which scheme a contraction is tried in first, and what happens where that was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contraction_cases import convolution, matmul
from test_contractions_plan import Of
from test_contractions_tune import CPU, TILING, a_case, chosen, emulated
from torch import nn

from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.errors import DeviceLost
from kernelwright.plan.expressions import Reduced
from kernelwright.plan.kernels import Reduction
from kernelwright.plan.records import KernelConfig
from kernelwright.roofline.devices import H200
from kernelwright.tune import accuracy, contraction_guess, contraction_rounds
from kernelwright.tune import contraction_trials as trials
from kernelwright.tune import contractions as tune
from kernelwright.tune.accuracy import Error
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_candidates import candidates
from kernelwright.tune.contraction_guess import rounded, rounding_errors, rounding_passes, split_candidates
from kernelwright.tune.contraction_memory import Measured, Trial, recall
from kernelwright.tune.contraction_points import exact_sums, some_points
from kernelwright.tune.contraction_rounds import measure_cases
from kernelwright.tune.contraction_trials import Case
from kernelwright.tune.contraction_words import line

FAST, FINE = KernelConfig("fp16", TILING), KernelConfig("fp16x3", TILING)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


# What rounding costs ------------------------------------------------------------------------------


def test_eleven_bits():
    values = torch.randn(100_000).double()
    assert torch.equal((rounded(values) - values).abs(), (values.half().double() - values).abs().where(
        values.abs() >= 2 ** -14, (rounded(values) - values).abs()))
    extreme = torch.tensor([3.3e38, -1e-38, 1.0, 0.0, 2047.0, 2049.1], dtype=torch.float64)
    assert ((rounded(extreme) - extreme).abs() <= extreme.abs() * 2 ** -11).all()
    assert rounded(extreme)[2:].tolist() == [1.0, 0.0, 2047.0, 2050.0]


def test_the_error_of_rounded_operands():
    """As derived in the module: of random signs whatever their number, of one sign less by its root."""
    for depth in (64, 1024):
        case = matmul(512, depth, 64)
        points = some_points(case.kernel, CPU)
        inputs = case.inputs()
        for sign, expected in ((lambda x: x, 3.0e-4), (torch.abs, 3.0e-4 * (torch.pi / 2) / depth ** 0.5)):
            operands = [sign(x) for x in inputs]
            exact, short = (exact_sums(case.kernel, points, operands, f) for f in (lambda x: x, rounded))
            (error,) = accuracy.errors_of([short], [exact])
            assert error.rms == pytest.approx(expected, rel=0.1)


def test_sums_of_rounded_operands_of_planes_are_those_of_points():
    kernel = convolution(2, 2, 5, 4, (9, 8), (3, 3), padding=1).kernel
    inputs = [torch.randn(kernel.left_domain), torch.randn(kernel.right_domain)]
    planes = replace(kernel, position_reductions=(Reduction("sum", Reduced(0)),))
    points = some_points(planes, CPU)
    found = exact_sums(planes, points, inputs, rounded)
    torch.testing.assert_close(found, exact_sums(kernel, points, inputs, rounded), rtol=1e-13, atol=1e-13)
    assert not torch.allclose(found, exact_sums(planes, points, inputs), rtol=1e-6, atol=1e-6)


def test_a_kernel_has_the_error_that_was_foreseen():
    """fp16 under the emulation, on the same points and operands."""
    case = a_case(nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.GELU()), (2, 16, 9, 9), (FAST,))
    ((built, failures),) = trials.build([case], emulated)
    own: dict[Any, torch.Tensor] = {}
    measured = trials.try_out(case, "key", built, failures, own, CPU, H200, strict=False, budget_seconds=0.01)
    foreseen = [e for errors, _ in rounding_errors(case, own, CPU) for e in errors]
    torch_errors = [e for _, errors in rounding_errors(case, own, CPU) for e in errors]
    (trial,) = measured.trials
    assert len(trial.errors) == len(foreseen) == len(accuracy.DISTRIBUTIONS)
    assert [e.rms for e in trial.errors] == pytest.approx([e.rms for e in foreseen], rel=5e-3)
    assert [e.largest for e in trial.errors] == pytest.approx([e.largest for e in foreseen], rel=5e-2)
    assert list(measured.errors) == torch_errors


# The guess ----------------------------------------------------------------------------------------


def test_what_the_torch_call_rounds_decides(monkeypatch):
    case = a_case(Of(lambda m, x: F.relu(m.a(x)), a=nn.Conv2d(16, 24, 3, padding=1)), (2, 16, 9, 9))
    torch_sums = accuracy.torch_sums
    assert rounding_passes(case, {}, CPU) is False  # PyTorch is in float32 here

    def shares(share: float) -> Any:
        def sums(kernel, node, points, inputs):
            exact, short = (exact_sums(kernel, points, inputs, f) for f in (lambda x: x, rounded))
            return (exact + share * (short - exact)).float()
        return sums

    for share, passes in ((1.0, True), (3.0, True), (0.85, None), (0.5, False)):
        monkeypatch.setattr(accuracy, "torch_sums", shares(share))
        assert rounding_passes(case, {}, CPU) is passes, share

    def of_one_distribution(kernel, node, points, inputs):
        positive = bool((inputs[0] >= 0).all())
        return (torch_sums if positive else shares(1.0))(kernel, node, points, inputs)

    monkeypatch.setattr(accuracy, "torch_sums", of_one_distribution)
    assert rounding_passes(case, {}, CPU) is False  # it is refused for one of them


def test_forms_go_to_the_scheme_that_may_pass(monkeypatch):
    direct = KernelConfig("float32", 0)
    case = replace(a_case(), candidates=(FAST, FINE, direct), rounding=(FAST, direct), exact=(FINE, direct))
    for passes, expected in ((True, ((FAST, direct), (FINE,))), (False, ((FINE, direct), (FAST,))),
                             (None, (case.candidates, ()))):
        monkeypatch.setattr(contraction_guess, "rounding_passes", lambda *rest, passes=passes: passes)
        assert split_candidates(case, {}, CPU) == expected

    def too_much(*rest):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    def looked(*rest):
        raise AssertionError("there is nothing to choose")

    monkeypatch.setattr(contraction_guess, "rounding_passes", too_much)
    assert split_candidates(case, {}, CPU) == (case.candidates, ())
    monkeypatch.setattr(contraction_guess, "rounding_passes", looked)
    for same in (replace(case, rounding=(), exact=()), replace(case, rounding=(direct,), exact=(direct,))):
        assert split_candidates(same, {}, CPU) == (case.candidates, ())


def test_forms_of_one_scheme():
    """The other scheme's share is its own; float32 keeps what it had."""
    conv = a_case(nn.Conv2d(64, 48, 3, padding=1), (2, 64, 40, 40)).kernel
    product = a_case(nn.Linear(64, 48), (70, 64)).kernel
    few = a_case(nn.Conv2d(3, 16, 3), (2, 3, 20, 20)).kernel
    for kernel in (conv, product, few):
        for capability in ((9, 0), (8, 6)):
            every = candidates(kernel, "float32", capability, rounds=True, most=8)
            for scheme in ("fp16", "fp16x3"):
                some = candidates(kernel, "float32", capability, rounds=True, most=8, only=scheme)
                assert len(set(some)) == len(some) == len(every)
                assert {c.scheme for c in some} == {c.scheme for c in every} - ({"fp16", "fp16x3"} - {scheme})
                plain = [[c for c in found if c.scheme == "float32"] for found in (every, some)]
                assert len(plain[1]) <= len(plain[0]) + 1 and plain[0][:1] == plain[1][:1]
    alone = candidates(conv, "float32", (9, 0), rounds=False, most=8)
    assert candidates(conv, "float32", (9, 0), rounds=False, most=8, only="fp16") == alone
    assert candidates(conv, "bfloat16", (9, 0), rounds=True, most=8, only="fp16") == candidates(
        conv, "bfloat16", (9, 0), rounds=True, most=8)


# Rounds -------------------------------------------------------------------------------------------


class Trials:
    """In place of what builds and tries candidates: which schemes are accurate, and what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *accurate: str) -> None:
        self.accurate = accurate
        self.rounds: list[list[tuple[KernelConfig, ...]]] = []
        self.final: list[bool] = []
        monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.rounding, case.exact))
        monkeypatch.setattr(contraction_rounds, "build", self.build)
        monkeypatch.setattr(contraction_rounds, "try_out", self.try_out)

    def build(self, cases: Sequence[Case], build_all: Any) -> list[tuple[list, list]]:
        self.rounds.append([case.candidates for case in cases])
        return [([], []) for _ in cases]

    def try_out(self, case: Case, key: str, *rest: Any, final: bool, **options: Any) -> Measured:
        self.final.append(final)
        errors = [1e-7 if form.scheme in self.accurate else 1e-4 for form in case.candidates]
        tried = tuple(Trial(f, 1.0 if final or e < 1e-5 else inf, (Error(e, e),))
                      for f, e in zip(case.candidates, errors, strict=True))
        timed = final or min(errors) < 1e-5
        return Measured(tried, (f"{len(self.final)}",), 2.0 if timed else inf, (Error(1e-7, 1e-7),))


def several(count: int, *, first: int = 2, second: int = 2) -> dict[str, Case]:
    some = [replace(TILING, stages=n) for n in range(2, 8)]
    rounding, exact = ([KernelConfig(scheme, tiling) for tiling in some] for scheme in ("fp16", "fp16x3"))
    case = replace(a_case(), candidates=(FAST, FINE), rounding=tuple(rounding[:first]), exact=tuple(exact[:second]))
    return {f"key {n}": case for n in range(count)}


def measured_of(cases: dict[str, Case], kernels: int) -> dict[str, Measured]:
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=2, contraction_kernels=kernels)
    return measure_cases(cases, {}, CPU, H200, budget, None, strict=False)


def test_one_round_where_the_guess_was_right(monkeypatch):
    found = Trials(monkeypatch, "fp16")
    cases = several(2)
    measured = measured_of(cases, 64)
    assert found.rounds == [[c.rounding for c in cases.values()]] and found.final == [False, False]
    assert all({t.config.scheme for t in m.trials} == {"fp16"} and m.seconds == 2.0 for m in measured.values())
    assert all(recall(key) == m for key, m in measured.items())
    assert measure_cases({}, {}, CPU, H200, Budget(1000.0), None, strict=False) == {}


def test_another_round_where_none_is_accurate(monkeypatch):
    found = Trials(monkeypatch, "fp16x3")
    cases = several(2)
    measured = measured_of(cases, 64)
    assert found.rounds == [[c.rounding for c in cases.values()], [c.exact for c in cases.values()]]
    assert found.final == [False, False, True, True]
    for key, kept in measured.items():
        assert [t.config for t in kept.trials] == [*cases[key].rounding, *cases[key].exact]
        assert [t.seconds for t in kept.trials] == [inf, inf, 1.0, 1.0] and kept.seconds == 2.0
        assert len(kept.failures) == 2 and recall(key) == kept
        choice, _ = tune.decide(cases[key], kept)
        assert choice is not None and choice.scheme == "fp16x3"


@pytest.mark.parametrize(("kernels", "again"), [(4, []), (5, [1]), (7, [1, 1]), (8, [2, 2]), (64, [2, 2])])
def test_another_round_has_what_is_left_of_the_budget(kernels, again, monkeypatch):
    found = Trials(monkeypatch, "fp16x3")
    measured = measured_of(several(2), kernels)
    assert [len(some) for some in found.rounds[0]] == [2, 2]
    assert [len(some) for some in (found.rounds[1:] or [[]])[0]] == again
    assert sum(len(some) for round_ in found.rounds for some in round_) <= max(kernels, 4)
    assert all(recall(key) == m for key, m in measured.items()) and len(measured) == 2
    if not again:
        assert found.final == [True, True] and all(m.seconds == 2.0 for m in measured.values())
    lines = [line(several(2)[key], m, *tune.decide(several(2)[key], m)) for key, m in measured.items()]
    assert sum("torch not timed" in line for line in lines) == (again == [1])


def test_a_run_that_ends_between_the_rounds_is_gone_on_with(monkeypatch):
    """What awaits another round is not kept without it: its candidates would not be tried again."""
    found = Trials(monkeypatch, "fp16x3")
    usual = found.try_out

    def lost(case, key, *rest, **options):
        if len(found.rounds) == 2:
            raise DeviceLost(kernel="form", message="an illegal address", folder="somewhere")
        return usual(case, key, *rest, **options)

    monkeypatch.setattr(contraction_rounds, "try_out", lost)
    right = replace(several(1)["key 0"], rounding=(FINE,), exact=(FAST,))
    with pytest.raises(DeviceLost):
        measured_of({"right": right, **several(1)}, 64)
    assert recall("right") is not None and recall("key 0") is None


def test_what_does_not_fit_the_memory_is_left_out(monkeypatch):
    found = Trials(monkeypatch, "fp16x3")
    usual = found.try_out

    def too_much(case, key, *rest, **options):
        if (key == "key 0") == (len(found.rounds) == 1):
            raise RuntimeError("CUDA error: out of memory")
        return usual(case, key, *rest, **options)

    monkeypatch.setattr(contraction_rounds, "try_out", too_much)
    measured = measured_of(several(2), 64)
    assert set(measured) == {"key 0", "key 1"} and measured["key 0"] is None and len(found.rounds) == 2
    assert {t.config.scheme for t in measured["key 1"].trials} == {"fp16"}
    assert recall("key 0") is None and recall("key 1") is None  # the next run may find more room


def test_a_launch_without_memory_says_nothing_about_its_form(monkeypatch):
    case = a_case(nn.Linear(24, 16), (40, 24), (KernelConfig("fp16", Tiling("mma", 64, 16, 32, 2)),))
    ((built, failures),) = trials.build([case], emulated)
    said = "linear: launch of linear<<<(1, 1, 1), (128, 1, 1), 0>>> failed: "

    def try_out():
        return trials.try_out(case, "key", built, failures, {}, CPU, H200, strict=False, budget_seconds=0.01)

    def fails(text):
        def call():
            raise RuntimeError(text)

        monkeypatch.setattr(trials, "_launch", lambda *rest: call)

    fails(said + "out of memory (CUDA error 2)")
    with pytest.raises(RuntimeError, match="out of memory"):
        try_out()
    fails(said + "too many resources requested for launch (CUDA error 701)")
    assert "too many resources" in try_out().failures[0]


def test_nothing_is_timed_where_other_forms_are_to_come(monkeypatch):
    case = a_case(nn.Linear(24, 16), (40, 24), (KernelConfig("fp16", Tiling("mma", 64, 16, 32, 2)),))
    ((built, failures),) = trials.build([case], emulated)
    measure = trials.measure
    timed: list[list[str]] = []

    def counted(calls, **options):
        timed.append(list(calls))
        return measure(calls, **options)

    monkeypatch.setattr(trials, "measure", counted)
    kept = [trials.try_out(case, "key", built, failures, {}, CPU, H200, strict=False, budget_seconds=0.01, final=final)
            for final in (False, True)]
    assert len(timed) == 1 and kept[0].trials[0].seconds == kept[0].seconds == inf
    assert kept[0].errors == kept[1].errors and kept[0].trials[0].errors == kept[1].trials[0].errors
    assert 0 < kept[1].trials[0].seconds < inf and 0 < kept[1].seconds < inf and not kept[1].accurate


# From a model -------------------------------------------------------------------------------------


def test_a_convolution_by_its_guess(monkeypatch):
    """PyTorch may round here, and does not: fp16 is not compiled. The next run neither looks nor builds."""
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    monkeypatch.setattr(tune, "_WIN_ALONE", 1e9)
    for noise in ("_RMS_NOISE", "_MAX_NOISE"):
        monkeypatch.setattr(accuracy, noise, 4.0)
    assert torch.backends.cudnn.allow_tf32
    model, x = nn.Conv2d(16, 24, 3, padding=1), torch.randn(2, 16, 9, 9)
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=2, contraction_kernels=2)
    texts: list[str] = []

    def building(some, target, names):
        texts.extend(some)
        return emulated(some, target, names)

    monkeypatch.setattr(tune, "candidates", lambda *rest, only="", **options: [
        replace(c, tiling=TILING) for c in ((FAST, FINE) if not only else (FAST,) if only == "fp16" else (FINE,))])
    picked, left, lines = chosen(model, x, building, budget)
    assert len(texts) == 1 and len(picked) == 1 and not left and "fp16 " not in lines[0]

    def again(*rest):
        raise AssertionError("measured again")

    monkeypatch.setattr(contraction_rounds, "split_candidates", again)
    repeated, _, _ = chosen(model, x, building, budget)
    assert list(repeated.values()) == list(picked.values()) and len(texts) == 1


def test_the_key_is_of_all_that_forms_follow_from():
    case = a_case()
    key = tune._key(case, CPU, 4, strict=False)
    assert key == tune._key(replace(case, candidates=(FAST,)), CPU, 4, strict=False)
    for other in (tune._key(replace(case, saved_seconds=1.0), CPU, 4, strict=False),
                  tune._key(case, CPU, 5, strict=False), tune._key(case, CPU, 4, strict=True),
                  tune._key(a_case(nn.Linear(7, 5), (4, 7)), CPU, 4, strict=False)):
        assert other != key
