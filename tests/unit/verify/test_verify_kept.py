"""The model's side of certifications, made once for several candidates, and certifications that end early."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kernelwright.judge.check.problem_profile import make_profile
from kernelwright.problem import load_problem
from kernelwright.verify import certify
from kernelwright.verify.certificate import Plan, default_trials
from kernelwright.verify.kept import Kept
from kernelwright.verify.modes import certify_both
from kernelwright.verify.records import TrialPlan

PLAN = Plan(trials=default_trials()[:4], required=4)


class Counted(nn.Module):
    """A linear layer and something behind it; every call is counted."""

    def __init__(self, behind: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.behind = nn.Linear(6, 4), behind
        self.calls: list[torch.dtype] = []

    def forward(self, x):
        self.calls.append(x.dtype)
        return self.behind(self.linear(x))


def inputs(seed: int) -> list[torch.Tensor]:
    return [torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))]


def facts(certificate):
    """Everything but times."""
    trials = [replace(t, seconds=0, eager_seconds=0, candidate_seconds=0, repeat_seconds=0) for t in certificate.trials]
    return certificate.passed, certificate.why, trials, certificate.candidate_error, certificate.eager_error


@pytest.mark.parametrize("behind", [nn.Tanh(), nn.Dropout(0.5)], ids=["tanh", "dropout"])
def test_the_second_candidate_finds_what_the_first_left(behind):
    """The model is constructed and called once for each trial, and verdicts are what they are without."""
    model, kept = Counted(behind), Kept(1 << 20)
    right, wrong = Counted(behind), Counted(nn.ReLU())
    judge = lambda candidate, kept: certify(lambda: model, lambda: candidate, inputs, plan=PLAN, kept=kept)  # noqa: E731
    first = [facts(judge(candidate, kept)) for candidate in (right, wrong)]
    calls = len(model.calls)
    again = [facts(judge(candidate, kept)) for candidate in (right, wrong)]
    assert len(model.calls) == calls and len(kept.trials) == 4 and 0 < kept.bytes <= 1 << 20
    assert first == again == [facts(judge(candidate, None)) for candidate in (right, wrong)]
    assert first[0][0] and not first[1][0] and len(model.calls) > calls


def test_what_is_not_kept():
    """Nothing of a model that updates its buffers, none that returns its own state, and nothing beyond the room."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + 1, self.weight

    for model, room in ((Counted(nn.BatchNorm1d(4)), 1 << 20), (Own(), 1 << 20), (Counted(nn.Tanh()), 0)):
        kept = Kept(room)
        assert certify(lambda m=model: m, lambda m=model: m, inputs, plan=PLAN, kept=kept).trials
        assert kept.trials == {} and kept.bytes == 0
    small = Kept(1000)  # one trial's 6 * 5 inputs, twice as arguments, and outputs
    certify(lambda: Counted(nn.Tanh()), lambda: Counted(nn.Tanh()), inputs, plan=PLAN, kept=small)
    assert len(small.trials) == 1
    small.forget()
    assert small.trials == {} and small.bytes == 0


@pytest.mark.parametrize("behind", [nn.Tanh(), nn.BatchNorm1d(4), nn.Dropout(0.5)], ids=["tanh", "norm", "dropout"])
def test_one_float64_run_for_equal_bits(behind):
    """Both gradient modes, their gradients of eager's own bits, and another candidate have the truth that was found
    once: float64 runs once for each trial."""
    calls: list[torch.dtype] = []

    class Noted(Counted):
        def forward(self, x):
            calls.append((x.dtype, torch.is_grad_enabled()))
            return super().forward(x)

    kept, plan = Kept(truth_bytes=1 << 20), replace(PLAN, repeats=0, budget_seconds=1000.0)
    made = lambda kept: certify_both(lambda: Noted(behind), lambda: Counted(behind), inputs, plan=plan, kept=kept)  # noqa: E731
    first = made(kept)
    assert first.passed and calls.count((torch.float64, False)) == 4
    assert calls.count((torch.float64, True)) == 0
    assert len(kept.truths) == 4 and 0 < kept.bytes_of_truths <= 1 << 20 and not kept.trials
    calls.clear()
    assert facts(made(kept))[2] == facts(first)[2] and calls.count((torch.float64, False)) == 0
    calls.clear()
    alone = made(None)
    assert facts(alone)[2] == facts(first)[2] and calls.count((torch.float64, True)) == 5


def test_what_has_no_bytes_is_not_kept_for_the_other_gradient_mode():
    """Without a place for trials none stays, one of no elements neither: its form is that of one mode."""
    model, kept = nn.Linear(6, 0), Kept(truth_bytes=1 << 20)
    found = certify_both(lambda: model, lambda: nn.Linear(6, 0), lambda seed: [torch.randn(0, 6)], plan=PLAN, kept=kept)
    assert found.passed and found.recorded is not None and not kept.trials


def test_another_result_of_eager_has_its_own_truth():
    """What was found for other bits says nothing."""
    class Mode(nn.Module):
        def forward(self, x):
            return x * (3.0 if torch.is_grad_enabled() else 2.0)

    class Twice(nn.Module):
        def forward(self, x):
            return x * 2.0

    for candidate, passed in ((Mode, True), (Twice, False)):
        found = certify_both(Mode, candidate, inputs, plan=PLAN, kept=Kept(truth_bytes=1 << 20))
        assert found.passed == passed


def test_a_profile_leaves_its_trials_for_the_checks(tmp_path):
    """What the probes asked of the model is not asked again."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.fc = nn.Linear(6, 4)\n\n    def forward(self, x):\n"
        "        return torch.tanh(self.fc(x))\n\ndef get_inputs():\n    return [torch.randn(5, 6)]\n")
    problem = load_problem(tmp_path / "model.py", device=torch.device("cpu"))
    kept = Kept(1 << 20)
    profile = make_profile(problem, 3, 20.0, kept=kept)
    assert TrialPlan(3) in kept.trials and set(profile.needed) <= set(kept.trials)
    assert all(trial.reference is not None and trial.reference[1] == "float64" for trial in kept.trials.values())
    known = dict(kept.trials)
    plan = Plan(trials=tuple(known), required=len(known), budget_seconds=0.0)
    right = certify(lambda: problem.make_model(3), lambda: problem.make_model(3), problem.make_inputs, plan=plan,
                    kept=kept)
    assert right.passed and {t.plan for t in right.trials} == set(known) and kept.trials == known
    alone = certify(lambda: problem.make_model(3), lambda: problem.make_model(3), problem.make_inputs, plan=plan)
    assert facts(alone)[1:] == facts(right)[1:]


def test_the_first_failure_may_end_it():
    """Trials after a failing one are skipped, with the reason; a right candidate goes through all."""
    plan = replace(PLAN, stop_at_failure=True, check_gradients=True)
    judge = lambda behind: certify(lambda: Counted(nn.Tanh()), lambda: Counted(behind), inputs, plan=plan)  # noqa: E731
    wrong = judge(nn.Sigmoid())
    assert not wrong.passed and len(wrong.trials) == 1 and wrong.gradients is None
    assert [s.why for s in wrong.skipped] == ["a trial before it failed"] * 3
    right = judge(nn.Tanh())
    assert right.passed and len(right.trials) == 4 and right.gradients is not None
