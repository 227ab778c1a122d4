"""What is found out about a model before there is a candidate, and what need not be measured of one."""

from __future__ import annotations

import sys
from math import nan

import pytest
import torch
from torch import nn

from kernelwright.verify import Plan, certify, default_trials, trial
from kernelwright.verify.certificate import look_ahead
from kernelwright.verify.compare import compare_changed
from kernelwright.verify.kept import Kept
from kernelwright.verify.observe import identical
from kernelwright.verify.reference import FLOAT64, UNCHANGED
from kernelwright.verify.statistics import measure_error
from kernelwright.verify.tolerance import Tolerance

TRIALS = default_trials()[:3]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(x))


class Builds(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "after"):
            self.after = nn.Softplus()
        return self.after(super().forward(x))


class Raises(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.isnan().any()) or float(x.abs().max()) > 1.0:
            raise ValueError("out of range")
        return super().forward(x)


def inputs(seed: int) -> list[torch.Tensor]:
    return [torch.rand(5, 6, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("recording", [False, True])
def test_a_certification_goes_on_from_what_was_found(recording, monkeypatch):
    """In the trials that were looked at float64 does not run again, in either gradient mode, and the certificate is
    that without them."""
    plan = Plan(trials=TRIALS, recording=recording)
    alone = certify(Norm, Norm, inputs, plan=plan)
    kept = Kept(truth_bytes=1 << 20)
    state = torch.get_rng_state()
    asked = iter([True, True, True, False])  # by the function itself, and before each trial
    look_ahead(Norm, inputs, Plan(trials=TRIALS), kept, lambda: next(asked))
    assert list(kept.truths) == list(TRIALS[:2]) and torch.equal(torch.get_rng_state(), state)
    fresh = Norm().state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in kept.model.state_dict().items())
    runs = []
    reference_of = trial.reference_of
    monkeypatch.setattr(trial, "reference_of", lambda *a, **k: (runs.append(a), reference_of(*a, **k))[1])
    found = certify(Norm, Norm, inputs, plan=plan, kept=kept)
    assert len(runs) == 1
    assert [(t.plan, t.comparison, t.state, t.reference) for t in found.trials] == \
        [(t.plan, t.comparison, t.state, t.reference) for t in alone.trials]


def test_nothing_is_left_of_a_model_that_builds_parts():
    kept = Kept(truth_bytes=1 << 20)
    look_ahead(Builds, inputs, Plan(trials=TRIALS), kept, lambda: True)
    assert kept.model is kept.double is kept.original is None and not kept.truths and not kept.rebuilt
    assert certify(Builds, Builds, inputs, plan=Plan(trials=TRIALS), kept=kept).passed


def test_nothing_is_found_of_calls_that_raise():
    kept = Kept(truth_bytes=1 << 20)
    look_ahead(Raises, inputs, Plan(trials=TRIALS), kept, lambda: True)
    assert TRIALS[0] in kept.truths and TRIALS[1] not in kept.truths
    found = certify(Raises, Raises, inputs, plan=Plan(trials=TRIALS), kept=kept)
    assert found.passed and [s.plan for s in found.skipped] == [TRIALS[1]]


def test_what_is_made_of_a_model_that_fails_is_let_go():
    def fails(seed: int) -> list[torch.Tensor]:
        raise RuntimeError("no inputs")

    kept = Kept(truth_bytes=1 << 20)
    with pytest.raises(RuntimeError, match="no inputs"):
        look_ahead(Norm, fails, Plan(trials=TRIALS), kept, lambda: True)
    assert kept.model is None


@pytest.mark.parametrize("plan,room", [(Plan(trials=TRIALS, unchanged=True), 1 << 20), (Plan(trials=TRIALS), 0)])
def test_nothing_is_looked_for_in_vain(plan, room):
    """Of a candidate that is the original computation eager is the truth; without room nothing would be kept."""
    kept = Kept(truth_bytes=room)
    look_ahead(Norm, inputs, plan, kept, lambda: pytest.fail("nobody needs it"))
    assert kept.model is None


class Cancels(nn.Module):
    """Sums of large terms of which little is left: eager has three digits of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(512, 32)
        with torch.no_grad():
            self.linear.bias.copy_(1e-6 - self.linear.weight.sum(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(1 + 1e-6 * x)


class CancelsInHalves(Cancels):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = 1 + 1e-6 * x, self.linear.weight.t()
        return (x[:, :256] @ weight[:256] + x[:, 256:] @ weight[256:]) + self.linear.bias


def rows(seed: int) -> list[torch.Tensor]:
    return [torch.rand(64, 512, generator=torch.Generator().manual_seed(seed))]


def test_the_truth_of_the_original_computation_is_nobody_elses():
    """A file without kernels is compared with eager; one that has some is held to float64 all the same, where eager has
    an error, too."""
    kept, trials = Kept(truth_bytes=1 << 24), TRIALS[:1]
    first = certify(Cancels, Cancels, rows, plan=Plan(trials=trials, unchanged=True), kept=kept)
    assert first.passed and {t.reference for t in first.trials} == {UNCHANGED}
    found = certify(Cancels, CancelsInHalves, rows, plan=Plan(trials=trials), kept=kept)
    assert found.passed, found.why
    assert {t.reference for t in found.trials} == {FLOAT64} and found.trials[0].comparison.outputs[0].eager_relative > 0


def test_bits_tell_zeros_and_nans_apart():
    zero, bits = torch.zeros(2, 3), torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not identical(zero, -zero) and not identical(zero.to(torch.complex64), (-zero).to(torch.complex64))
    assert identical(zero.mT, torch.zeros(3, 2)) and identical(zero[:, :1].expand(2, 3), zero)
    assert identical(torch.full((2,), nan), torch.full((2,), nan)) and not identical(bits[0], bits[1])
    turned = torch.randn(3, dtype=torch.complex64).conj()
    assert identical(turned, turned.resolve_conj()) and identical(turned.imag, turned.resolve_conj().imag)
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.uint16, torch.float8_e4m3fn, torch.bfloat16,
                  torch.complex128):
        assert identical(torch.zeros(3, dtype=dtype), torch.zeros(3, dtype=dtype))
        assert not identical(torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype))


def test_only_entries_with_other_bits_are_measured(monkeypatch):
    eager = {"same": torch.rand(4), "zero": torch.zeros(4), "near": torch.rand(4), "count": torch.tensor(3)}
    candidate = {"same": eager["same"].clone(), "zero": -eager["zero"], "near": eager["near"] * 1.01,
                 "count": torch.tensor(4)}
    reference = {name: value.double() if value.is_floating_point() else value for name, value in eager.items()}
    measured = []
    monkeypatch.setattr(sys.modules[compare_changed.__module__], "measure_error",
                        lambda *a, **k: (measured.append(a[0]), measure_error(*a, **k))[1])
    found = compare_changed(candidate, eager, reference, root="state", tolerance=Tolerance(zeros="sign"))
    assert len(measured) == 2
    assert {o.path: o.passed for o in found.outputs} == {
        "state['same']": True, "state['zero']": False, "state['near']": False, "state['count']": False}
    assert not found.passed
    assert compare_changed(eager, eager, reference, root="state").passed
