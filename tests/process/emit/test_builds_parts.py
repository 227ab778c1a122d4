"""Models that build parts of themselves in their first call, as transformers' BigBird does for short inputs."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

import kernelwright
from kernelwright import programs
from kernelwright.capture.export import capture
from kernelwright.capture.values import BuildsParts
from kernelwright.problem import load_problem
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.certificate import certify, default_trials
from kernelwright.verify.kept import Kept

MODEL = """
import torch
from torch import nn

class Narrow(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
    def forward(self, x):
        return torch.relu(self.linear(x) * 2.0 + 1.0).cumsum(-1) * 0.5

class Wide(Narrow):
    def forward(self, x):
        return torch.tanh(self.linear(x) + 3.0) * 0.25 - torch.sigmoid(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = "narrow"
        self.part = Narrow(24)
    def forward(self, x):
        if self.kind == "narrow":  # draws weights, which it does not keep
            wide = Wide(24)
            wide.linear = self.part.linear
            self.part, self.kind = wide.train(self.training), "wide"
        return self.part(x)

def get_inputs():
    return [torch.randn(32, 24)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def problem(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return load_problem(tmp_path / "model.py", device="cpu")


def given_and_drawn(model, x):
    """What a call gives, and where it leaves the generator of random numbers."""
    torch.manual_seed(7)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the first call runs the original
        return model(x), torch.get_rng_state()


def test_kernels_compute_what_the_first_call_has_built(problem):
    result = kernelwright.optimize(problem.path, target="cpp", effort="quick", baselines="none", budget=120.0,
                                   contractions="library")
    kept = [note for note in result.notes if "planned without" in note or "stays" in note]
    assert result.modes and all(mode.certificate.passed for mode in result.modes) and not kept, result.notes
    spec = importlib.util.spec_from_file_location("builds_parts_new", result.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for training in (False, True):
        ours, original = (problem.make_model(0, kind).train(training) for kind in (module.ModelNew, None))
        for seed in (1, 1, 2):
            x = problem.make_inputs(seed)[0]
            (own, drawn), (wanted, by_eager) = given_and_drawn(ours, x), given_and_drawn(original, x)
            torch.testing.assert_close(own, wanted)
            assert torch.equal(drawn, by_eager), "as many numbers are drawn, and in the same call"


def test_a_graph_of_the_first_call_is_no_graph(problem):
    with pytest.raises(BuildsParts):
        capture(problem.make_model(0), problem.make_inputs(0), name="Model", fresh=lambda: problem.make_model(0))


def test_every_candidate_makes_the_first_call_that_the_model_has_made(problem):
    kept = Kept(most_bytes=1 << 20)
    plan = Trials(trials=default_trials()[:3], budget_seconds=30.0, required=3, repeats=2)
    for _ in range(3):
        found = certify(lambda: problem.make_model(0), lambda: problem.make_model(0), problem.make_inputs, plan=plan,
                        kept=kept)
        assert found.passed and found.deterministic, found.why
    assert kept.rebuilt


def test_a_candidate_of_a_file_with_classes_of_its_own_is_not_called_before_it_is_tried(monkeypatch, problem):
    calls = []
    monkeypatch.setattr(programs, "after_first_call", lambda *given: calls.append(given))
    path = problem.path.with_name("plain.py")
    path.write_text(MODEL.replace('self.kind = "narrow"', 'self.kind = "wide"').replace("Narrow(24)", "Wide(24)"))
    result = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none", contractions="library")
    assert result.certificate.passed and "class Narrow" in result.source and not calls
