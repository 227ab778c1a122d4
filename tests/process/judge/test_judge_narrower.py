"""What a failing candidate is wrong with, and where it is right all the same, when its check ends early."""

from __future__ import annotations

import pytest
import torch

from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress
from kernelwright.verify.distributions import ABOVE, BELOW, DISTRIBUTIONS, zero_half
from kernelwright.verify.drawn import inputs_of
from kernelwright.verify.records import TrialPlan

TRIANGULAR = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(24))

    def forward(self, a, b):
        return torch.tril(a @ b) * self.scale

def get_inputs():
    return [torch.tril(torch.randn(24, 24)), torch.tril(torch.rand(24, 24))]
"""
NEW = TRIANGULAR.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
RETURN = "torch.tril(a @ b) * self.scale"
CANDIDATES = {
    "general": NEW,
    "uses_zeros": NEW.replace(RETURN, "torch.tril(torch.tril(a) @ torch.tril(b)) * self.scale"),
    # A loop that leaves out what is zero: a NaN that would be multiplied by it does not show.
    "skips_zeros": NEW.replace(RETURN, "torch.tril(torch.where(torch.ones(24, 24).tril().bool()[:, :, None], "
                               "a[:, :, None] * b[None], 0.0).sum(1)) * self.scale"),
    # Not even where matrices stay triangular: the problem's own b has no sign.
    "uses_sign": NEW.replace(RETURN, "torch.tril(torch.tril(a) @ torch.tril(b).abs()) * self.scale"),
    # Its parameter has another name, and the values that the seed gives: what is wrong is the sign.
    "renamed": NEW.replace("self.scale", "self.factor").replace("a @ b", "a @ b.abs()"),
    "renamed_right": NEW.replace("self.scale", "self.factor"),
    "other_values": NEW.replace("self.scale", "self.factor").replace("ones(24)", "randn(24)"),
    "no_scale": NEW.replace(RETURN, "torch.tril(a @ b)"),
    "replay": NEW.replace(f"return {RETURN}", f"self.kept = getattr(self, 'kept', {RETURN}).clone()\n"
                          "        return self.kept.clone()"),
}
VERDICTS = {"renamed": "WRONG-DISTRIBUTION", "renamed_right": "OK-BUT", "other_values": "WRONG-PARAMETERS",
            "general": "OK", "uses_zeros": "OK-BUT", "skips_zeros": "OK-BUT",
            "uses_sign": "WRONG-DISTRIBUTION", "no_scale": "WRONG-PARAMETERS",
            "replay": "WRONG-NUMERIC"}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("narrower")
    (folder / "problem.py").write_text(TRIANGULAR)
    for name, text in CANDIDATES.items():
        assert name == "general" or text != NEW
        (folder / f"{name}.py").write_text(text)
    settings = JudgeSettings(target="cpp", effort="quick", verdict_only=True, seed=7)
    found = judge(folder / "problem.py", [folder / f"{name}.py" for name in CANDIDATES], settings, Progress())
    return dict(zip(CANDIDATES, found.candidates, strict=True))


@pytest.mark.parametrize("name", CANDIDATES)
def test_the_verdict_names_what_is_wrong_though_the_first_failing_trial_changes_all(judged, name):
    found = judged[name]
    assert found.verdict == VERDICTS[name], found.reason


def test_what_is_right_for_triangular_matrices_alone_says_so(judged):
    assert ("only where input 0 is zero above its diagonal and input 1 is zero above its diagonal, as in the problem's "
            "own inputs") in judged["uses_zeros"].limits
    assert not judged["general"].limits
    trials = judged["uses_zeros"].certificate.trials
    assert all(trial.plan.triangular is (trial.plan.distribution != "as given") for trial in trials) and len(trials) > 5


@pytest.mark.parametrize("half", [torch.tril, torch.triu])
def test_triangular_matrices_stay_so(half):
    def make(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [half(torch.randn(2, 9, 9, generator=generator)), torch.randn(9, 9, generator=generator)]

    for name, distribution in DISTRIBUTIONS.items():
        if distribution.place is not None:
            continue
        kept, free = inputs_of(TrialPlan(3, name, triangular=True), make)
        assert torch.equal(kept.nan_to_num(7.0), half(kept.nan_to_num(7.0))), name
        dense, same = inputs_of(TrialPlan(3, name), make)
        assert torch.equal(same.nan_to_num(7.0), free.nan_to_num(7.0)) and free.stride() == same.stride()
        assert torch.equal(half(dense).nan_to_num(7.0), kept.nan_to_num(7.0))


def test_which_half_is_zero():
    ones = torch.ones(8, 8)
    assert zero_half(ones.tril()) == ABOVE and zero_half(ones.triu().expand(3, 8, 8)) == BELOW
    for other in (ones, torch.eye(8), ones.tril()[:7], torch.ones(7, 7).tril(), ones.tril().long(), torch.zeros(8, 8),
                  torch.ones(8), torch.ones(1, 8).expand(8, 8)):
        assert zero_half(other) is None
