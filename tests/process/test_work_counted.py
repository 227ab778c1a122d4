"""What a run costs, by counting what it does: no clock decides here."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from kernelwright import programs, selection, truths, tuned, verified
from kernelwright.cli_frame import importing
from kernelwright.pipeline import optimize
from kernelwright.verify import trial
from kernelwright.verify.certificate import Plan, default_trials
from kernelwright.verify.kept import Kept
from kernelwright.verify.modes import RECORDED, certify_both
from kernelwright.verify.trial import Bench

TRIALS = Plan(trials=default_trials()[:3], repeats=0)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


class Kernels(Layers):
    """Results of its own, as kernels have; gradients are those of the original forward times ``factor``."""

    factor = 1.0
    halves = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.halves:
            return self.first(x).relu() @ (self.last.weight.t() * 0.3 + self.last.weight.t() * 0.7) + self.last.bias
        right = super().forward(x)
        scaled = right * self.factor
        return scaled + (right * (1 + 1e-7) - scaled).detach()


def certified(monkeypatch: pytest.MonkeyPatch, candidate: type[Layers], **options: object):
    """The certificate of a candidate, and how many backward passes ran in each type."""
    passes: Counter[torch.dtype] = Counter()
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda outputs, *a, **o: (
        passes.update([outputs[0].dtype]), grad(outputs, *a, **o))[1])

    def made(kind: type[Layers], **values: object) -> Layers:
        torch.manual_seed(0)
        model = kind()
        for name, value in values.items():
            setattr(model, name, value)
        return model

    def inputs(seed: int) -> list[torch.Tensor]:
        return [torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))]

    return certify_both(lambda: made(Layers), lambda: made(candidate, **options), inputs, plan=TRIALS,
                        kept=Kept(truth_bytes=1 << 20)), passes


def test_gradients_of_eagers_bits_need_no_backward_pass_in_float64(monkeypatch):
    calls: Counter[torch.dtype] = Counter()
    forward = Layers.forward
    monkeypatch.setattr(Layers, "forward", lambda self, x: (calls.update([x.dtype]), forward(self, x))[1])
    certificate, passes = certified(monkeypatch, Kernels)
    assert certificate.passed and certificate.recorded is not None and certificate.recorded.gradients is not None
    assert passes[torch.float64] == 0 and passes[torch.float32] > 0
    assert "gradients are eager's, bit for bit" in certificate.sentence()
    assert calls[torch.float64] == len(TRIALS.trials)  # the trials without gradients have told the rest


def test_other_gradients_are_held_against_float64(monkeypatch):
    certificate, passes = certified(monkeypatch, Kernels, halves=True)
    assert certificate.passed and passes[torch.float64] > 0
    assert "of gradients" in certificate.sentence()


def test_wrong_gradients_are_refused(monkeypatch):
    certificate, passes = certified(monkeypatch, Kernels, factor=1.01)
    assert not certificate.passed and passes[torch.float64] > 0
    assert certificate.recorded is not None and not certificate.recorded.passed


def test_what_is_imported_before_there_is_a_model():
    """Each of these takes from a third of a second to seconds; a run imports what it needs when it needs it."""
    program = "import sys, kernelwright.pipeline; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {".".join(name.split(".")[:2]) for name in done.stdout.split()}
    assert "kernelwright.pipeline" in loaded
    assert not loaded & {"torch._dynamo", "torch._inductor", "sympy", "ray", "rich", "typer"}


def test_nobody_looks_for_cycles_among_what_imports_made():
    before, thresholds = gc.get_freeze_count(), gc.get_threshold()
    gc.set_threshold(700, *thresholds[1:])  # whoever ran in this process before
    try:
        with importing():
            made = [[number] for number in range(2000)]
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() >= before + len(made) and gc.get_threshold()[0] > 700
    finally:
        gc.unfreeze()
        gc.freeze()  # with what stays until the end (`conftest`): each measurement would look through it from here on
        gc.set_threshold(*thresholds)


PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return ((x * FACTOR + 1) * x - 3).sum(dim=1)

def get_inputs():
    return [torch.rand(64, 400)]
"""


DROPS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(24, 24), nn.Dropout(0.25)
    def forward(self, x):
        return torch.tanh(self.drop(self.layer(x) * 2.0 + 1.0).cumsum(1)) * 3.0
def get_inputs():
    return [torch.randn(16, 24)]
def get_init_inputs():
    return []
"""
TOLD = ("    def forward", "    def train(self, mode=True):\n        self.times = getattr(self, 'times', 0) + 1\n"
        "        return super().train(mode)\n    def forward")


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Options of a run in which every region wins, and no mode is slower than eager."""
    monkeypatch.setattr(selection, "_timed", lambda *_, **__: ({}, {}))
    return {"effort": "quick", "budget": 900, "baselines": "none", "target": "cpp", "force": True}


def test_a_second_run_of_the_same_file_repeats_the_trials_that_tell_most(tmp_path, unhurried):
    """What passed everything is tried with little when it is made again, and says so; another file is not."""

    def trials(factor: int, effort: str = "quick") -> tuple[int, bool]:
        path = tmp_path / "problem.py"
        path.write_text(PROBLEM.replace("FACTOR", str(factor)))
        result = optimize(path, **{**unhurried, "effort": effort})
        certificate = result.modes[0].certificate
        assert certificate is not None and certificate.passed and certificate.recorded is not None
        return len(certificate.trials), any("in an earlier run" in note for note in result.notes)

    first = trials(2)
    assert first[0] > RECORDED and not first[1]
    assert trials(2) == (RECORDED, True)
    assert trials(3) == (first[0], False)
    assert trials(2, "thorough") == (first[0], False)


def test_the_certificate_of_a_file_that_stays_as_it_is_goes_on(monkeypatch, tmp_path, unhurried):
    """Measurements change nothing: the file is built once, and each trial runs once in each mode that has it; the first
    one that records gradients once more, where it is of calls after a step of training. What is true in a trial is
    found once, for both modes and for calls with gradients and without."""
    ran: Counter[tuple[object, ...]] = Counter()
    builds: list[str] = []
    truths_found: list[int] = []
    reference_of = trial.reference_of
    monkeypatch.setattr(trial, "reference_of", lambda model, eager, double, seed, *rest, **options: (
        truths_found.append(seed), reference_of(model, eager, double, seed, *rest, **options))[1])
    run, load = Bench.run, verified.load_text
    monkeypatch.setattr(Bench, "run", lambda self, plan, **options: (
        ran.update([(id(self.kept), self.recording, plan)]), run(self, plan, **options))[1])
    monkeypatch.setattr(verified, "load_text", lambda text, name: (builds.append(text), load(text, name))[1])
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.replace("FACTOR", "5"))
    result = optimize(path, **unhurried)
    certificate = result.certificate
    again = {(recording, plan) for (_, recording, plan), times in ran.items() if times > 1}
    assert len(builds) == 1 and result.modes[0].kernels and max(ran.values()) == 2
    assert again == {(True, default_trials()[0])}
    assert len(result.modes) == 1 and len({kept for kept, _, _ in ran}) == 2
    assert sorted(truths_found) == sorted(plan.seed for plan in default_trials())
    assert certificate.passed and {t.plan for t in certificate.trials} == set(default_trials())
    assert len(certificate.recorded.trials) == RECORDED and certificate.recorded.gradients.passed
    assert not certificate.skipped and certificate.deterministic


def test_what_is_wrong_in_a_later_trial_is_found_when_the_certificate_goes_on(monkeypatch, tmp_path, unhurried):
    """A fault that the first trials do not show costs the mode its kernels, whatever passed before."""
    run = Bench.run

    def failing(self, plan, **options):
        found = run(self, plan, **options)
        return replace(found, passed=False, problems=("It is wrong.",), kinds=("value",)) \
            if plan.distribution == "wide" and not self.unchanged else found

    monkeypatch.setattr(Bench, "run", failing)
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.replace("FACTOR", "6"))
    result = optimize(path, **unhurried)
    assert result.path.exists() and result.certificate.passed and not result.modes[0].kernels
    assert any("It is wrong." in note for note in result.notes), result.notes


def test_what_passed_in_an_earlier_run_is_tuned_on(monkeypatch, tmp_path, unhurried):
    """A mode that is tried with less, as it passed before, has not stepped back: nothing of it is settled."""
    settled: list[set[str]] = []
    modes = tuned.Tuning.modes
    monkeypatch.setattr(tuned.Tuning, "modes", lambda self, *rest: (
        settled.append(set(self.settled)), modes(self, *rest))[1])
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.replace("FACTOR", "7"))
    for earlier in (False, True):
        result = optimize(path, **unhurried)
        assert any("in an earlier run" in note for note in result.notes) == earlier
    assert settled == [set()] * 4


@pytest.mark.parametrize("spare", [0, 2])
def test_the_model_and_its_float64_copy_are_made_once_for_all_modes(spare, monkeypatch, tmp_path, unhurried):
    """Where a mode is nothing but what its modules note; who does something of its own in one has its own model. So it
    is where modes are looked at while their kernels are compiled."""
    monkeypatch.setattr(verified, "spare_processors", lambda: spare)
    made: list[nn.Module] = []
    double = truths.to_float64
    monkeypatch.setattr(truths, "to_float64", lambda model: (made.append(model), double(model))[1])
    for name, source, copies in (("plain", DROPS, 1), ("told", DROPS.replace(*TOLD), 2)):
        made.clear()
        (tmp_path / f"{name}.py").write_text(source)
        result = optimize(tmp_path / f"{name}.py", **unhurried)
        assert len(result.modes) == 2 and all(mode.certificate.passed for mode in result.modes), result.notes
        assert len(made) == copies


def test_parameters_of_models_that_modes_are_captured_of_are_shared_where_they_are_large(monkeypatch):
    monkeypatch.setattr(programs, "_MANY_BYTES", 100)
    one, other = Layers(), Layers().eval()
    programs.share_large(one, other)
    assert all(p.data_ptr() == q.data_ptr() for p, q in zip(one.parameters(), other.parameters(), strict=True))
