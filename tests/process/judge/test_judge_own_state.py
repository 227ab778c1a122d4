"""Candidates that keep the model's parameters in a form of their own: right with a limit, or stale and so wrong."""

from __future__ import annotations

import pytest

from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return self.norm(torch.relu(self.linear(x)))

def get_inputs():
    return [torch.randn(12, 24)]

def get_init_inputs():
    return [24]
"""
HEAD = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        linear, norm = nn.Linear(features, features), nn.LayerNorm(features)
"""
BY_NAME = "        self.linear, self.norm = linear, norm\n"
COPY = "        self.weight_t = linear.weight.detach().t().contiguous()\n"
OWN_NORM = "        self.gamma, self.beta = nn.Parameter(norm.weight.data), nn.Parameter(norm.bias.data)\n"
FORWARD = "    def forward(self, x):\n"
RETURN = "        return nn.functional.layer_norm(torch.relu({}), (24,), {})\n"
NORM = "self.norm.weight, self.norm.bias"
OWN = HEAD + COPY + "        self.bias = linear.bias.detach()\n" + OWN_NORM + FORWARD
CANDIDATES = {
    "by_name": HEAD + BY_NAME + FORWARD + RETURN.format("self.linear(x)", NORM),
    # Right, with a state of its own.
    "beside": HEAD + BY_NAME + "        self.register_buffer('weight_t', linear.weight.detach().t().clone())\n"
    + FORWARD + "        self.weight_t.copy_(self.linear.weight.t())\n"
    + RETURN.format("x @ self.weight_t + self.linear.bias", NORM),
    "own": OWN + RETURN.format("x @ self.weight_t + self.bias", "self.gamma, self.beta"),
    "renamed": HEAD + "        self.fc, self.ln = linear, norm\n" + FORWARD
    + RETURN.format("self.fc(x)", "self.ln.weight, self.ln.bias"),
    # Stale: beside the model's parameters, and beside parameters under names of its own.
    "stale": HEAD + BY_NAME + COPY + FORWARD + RETURN.format("x @ self.weight_t + self.linear.bias", NORM),
    "renamed_stale": HEAD + "        self.fc, self.ln = linear, norm\n" + COPY + FORWARD
    + RETURN.format("x @ self.weight_t + self.fc.bias", "self.ln.weight, self.ln.bias"),
    # Made once for all instances, whatever their seed.
    "once": HEAD + COPY + "        self.weight_t = ModelNew.kept = getattr(ModelNew, 'kept', self.weight_t)\n"
    + "        self.bias = linear.bias.detach()\n" + OWN_NORM + FORWARD
    + RETURN.format("x @ self.weight_t + self.bias", "self.gamma, self.beta"),
    # The norm's ones and zeros are left out, which no seed shows; a decoy holds them and is not read.
    "no_affine": HEAD + COPY + "        self.bias = linear.bias.detach()\n" + FORWARD
    + RETURN.format("x @ self.weight_t + self.bias", "None, None"),
    "decoy": OWN + RETURN.format("x @ self.weight_t + self.bias", "None, None"),
    # Wrong for another reason than its names, and drawn otherwise than the model.
    "no_bias": OWN + RETURN.format("x @ self.weight_t", "self.gamma, self.beta"),
    "drawn": OWN.replace("linear, norm =", "torch.rand(3)\n        linear, norm =")
    + RETURN.format("x @ self.weight_t + self.bias", "self.gamma, self.beta"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_state")
    (folder / "problem.py").write_text(PROBLEM)
    for name, text in CANDIDATES.items():
        (folder / f"{name}.py").write_text(text)
    settings = JudgeSettings(target="cpp", effort="quick", time=False, seed=11)
    result = judge(folder / "problem.py", [folder / f"{name}.py" for name in CANDIDATES], settings, Progress())
    return dict(zip(CANDIDATES, result.candidates, strict=True))


def test_a_state_by_name_is_no_limit(verdicts):
    assert verdicts["by_name"].verdict == "OK", verdicts["by_name"].reason


@pytest.mark.parametrize(("name", "words"), [
    ("beside", "its state_dict has weight_t beside the model's, which loads with strict=False only"),
    ("own", "in a form of its own (weight_t, bias, gamma and beta): it follows the seed"),
    ("renamed", "no state_dict of the model loads into it"),
])
def test_a_form_of_its_own_that_follows_is_a_limit(verdicts, name, words):
    found = verdicts[name]
    assert found.verdict == "OK-BUT" and words in found.limits[0], (found.verdict, found.reason)


@pytest.mark.parametrize(("name", "kind", "words"), [
    ("stale", "stale-copy", "weight_t is a copy of linear.weight with its axes in another order"),
    ("renamed_stale", "stale-copy", "fc.weight holds the model's linear.weight, and other values in it are not "
                                    "followed: the candidate computes with weight_t (at ["),
    ("once", "seed-not-followed", "Right for one seed of the constructor, wrong for another (at ["),
    ("no_affine", "unseen-parameters", "norm.weight and norm.bias are made the same under every seed, and nothing"),
    ("decoy", "stale-copy", "other values in it are not followed: the candidate computes with what the constructor"),
    ("drawn", "state-dict", "it lacks linear.weight"),
])
def test_what_does_not_follow_is_wrong_and_says_so(verdicts, name, kind, words):
    found = verdicts[name]
    assert found.verdict == "WRONG-PARAMETERS", (found.verdict, found.reason)
    assert any(f.kind == kind and words in f.sentence for f in found.findings), found.findings
    assert found.fix


def test_a_fault_of_the_computation_goes_before_names(verdicts):
    found = verdicts["no_bias"]
    assert found.verdict == "WRONG-NUMERIC" and "bias" in found.reason, found.reason


def test_one_with_a_form_of_its_own_is_timed(tmp_path):
    """What the judge writes into its copies is taken back before."""
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "own.py").write_text(CANDIDATES["own"])
    found = judge(tmp_path / "problem.py", [tmp_path / "own.py"],
                  JudgeSettings(target="cpp", effort="quick"), Progress()).candidates[0]
    assert found.verdict == "OK-BUT" and found.timing is not None, found.reason


NORM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(x))

def get_inputs():
    return [torch.randn(4, 6, 5, 5) * 2 + 1]

def get_init_inputs():
    return [6]
"""


def test_running_statistics_under_another_name_are_held_against_the_models(tmp_path):
    """A batch norm in training updates them: of the layer's own name that is a limit, and not to do so is wrong."""
    (tmp_path / "problem.py").write_text(NORM)
    renamed = NORM.partition("def get_inputs")[0].replace("Model(", "ModelNew(").replace("self.norm", "self.bn")
    texts = {"renamed": renamed, "not_updated": renamed.replace(
        "self.bn(x)", "nn.functional.batch_norm(x, None, None, self.bn.weight, self.bn.bias, True)")}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = judge(tmp_path / "problem.py", [tmp_path / f"{name}.py" for name in texts], JudgeSettings(
        target="cpp", effort="quick", time=False, seed=11, verdict_only=True), Progress()).candidates
    assert found[0].verdict == "OK-BUT", found[0].reason
    assert "no state_dict of the model loads into it" in found[0].limits[0]
    assert found[1].verdict == "WRONG-STATE" and "running_mean" in found[1].reason, found[1].reason
