"""The rules of others beside our own: what each accepts and refuses of the same files."""

from __future__ import annotations

import json

import pytest
import torch
from schemas import assert_fits

from kernelwright.errors import KernelwrightError
from kernelwright.judge.report.text import render_text
from kernelwright.judge.rules import OTHERS
from kernelwright.judge.rules.kernelbench import trial_seeds
from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(x) + 0.1 * self.norm(x)

def get_inputs():
    return [torch.rand(16, 24)]

def get_init_inputs():
    return [24]
"""
RIGHT = PROBLEM.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
RETURN = "torch.relu(x) + 0.1 * self.norm(x)"
CANDIDATES = {
    "right": RIGHT,
    # All inputs are positive, weights one and biases zero: no trial of theirs shows what is left out.
    "no_relu": RIGHT.replace(RETURN, "x + 0.1 * self.norm(x)"),
    "no_affine": RIGHT.replace(RETURN, "torch.relu(x) + 0.1 * nn.functional.layer_norm(x, (24,))"),
    "half": RIGHT.replace(RETURN, f"({RETURN}).half().float()"),
    "off": RIGHT.replace(RETURN, f"{RETURN} + 0.05"),
    "raises": RIGHT.replace(RETURN, "self.norm(x.view(7, -1))"),
    "syntax": RIGHT + "def",
    # Its process ends on numbers that their trials do not have.
    "dies": RIGHT.replace("        return", "        if bool(x.isnan().any() or x.abs().max() > 2):\n"
                          "            import os; os._exit(3)\n        return"),
}
#: By ours, KernelBench's (of today, of 2025) and FlashInfer-Bench's rules.
VERDICTS = {
    "right": ("OK", True, True, True), "no_relu": ("WRONG-DISTRIBUTION", True, True, True),
    "no_affine": ("WRONG-PARAMETERS", True, True, True), "half": ("WRONG-PRECISION", False, True, True),
    "off": ("WRONG-NUMERIC", False, False, False), "raises": ("CRASH-RAISED", False, False, False),
    "syntax": ("BUILD-SYNTAX", False, False, False), "dies": ("CRASH-SIGNAL", True, True, True),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    (folder / "problem.py").write_text(PROBLEM)
    for name, text in CANDIDATES.items():
        assert name == "right" or text != RIGHT
        (folder / f"{name}.py").write_text(text)
    settings = JudgeSettings(target="cpp", effort="quick", time=False, seed=11, rules="all")
    return judge(folder / "problem.py", [folder / f"{name}.py" for name in CANDIDATES], settings, Progress())


@pytest.mark.parametrize("name", CANDIDATES)
def test_each_by_four_sets_of_rules(judged, name):
    found = judged.candidates[list(CANDIDATES).index(name)]
    assert (found.verdict, *(by.right for by in found.by_rules)) == VERDICTS[name], (found.reason, found.by_rules)
    assert [by.rules for by in found.by_rules] == ["kernelbench", "kernelbench-2025", "flashinfer"]
    for by in found.by_rules:
        assert bool(by.why) is not by.right and (by.passed == by.trials) is (by.right or by.trials == 0)


def test_the_report_says_where_they_differ_and_why(judged):
    text = " ".join(render_text(judged, width=120).split())
    assert "no_relu.py: right by KernelBench's rules (5 of 5 trials), wrong by ours (WRONG-DISTRIBUTION)" in text
    assert "half.py: right by FlashInfer-Bench's rules (3 of 3 trials), wrong by ours (WRONG-PRECISION), since" in text
    table = text.partition("By the rules of others")[2]
    assert "candidate ours KernelBench KernelBench 2025 FlashInfer-Bench" in table
    assert "half.py WRONG-PRECISION wrong right right" in table
    document = json.loads(json.dumps(judged.to_json(), allow_nan=False))
    assert_fits(document, "judge")
    assert document["settings"]["rules"] == "all" and document["exit_status"] == 1


LABELS = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, labels):
        return nn.functional.cross_entropy(x, labels)

def get_inputs():
    return [torch.randn(16, 24), torch.randint(0, 24, (16,))]
"""


def test_what_their_cast_breaks_is_said_and_blames_nobody(tmp_path):
    """A candidate that was right by ours is timed afterwards, as the instance that was checked."""
    (tmp_path / "problem.py").write_text(LABELS)
    (tmp_path / "right.py").write_text(LABELS.partition("def get_inputs")[0].replace("class Model(", "class ModelNew("))
    settings = JudgeSettings(target="cpp", effort="quick", rules="kernelbench, kernelbench-2025, flashinfer")
    found = judge(tmp_path / "problem.py", [tmp_path / "right.py"], settings, Progress()).candidates[0]
    assert found.verdict == "OK" and found.timing is not None, found.reason
    kernelbench, before, flashinfer = found.by_rules
    assert not kernelbench.right and "so nobody is right" in kernelbench.why
    assert before.right and flashinfer.right  # nothing is cast there


def test_seeds_and_comparisons_as_their_sources_have_them():
    assert len(set(trial_seeds())) == 5 and trial_seeds() == trial_seeds()
    with torch.random.fork_rng([]):
        torch.manual_seed(42)
        assert list(trial_seeds()) == [int(torch.randint(0, 2**32 - 1, (1,))) for _ in range(5)]
    kernelbench, flashinfer = OTHERS["kernelbench"].compare, OTHERS["flashinfer"].compare
    one, single = torch.ones(3), torch.float32
    assert not kernelbench(single, one, one + 1.9e-4) and kernelbench(single, one, one + 2.1e-4)
    before = OTHERS["kernelbench-2025"].compare
    assert not before(None, one, one + 0.019) and before(None, one, one + 0.021)
    assert before(None, one.half(), one.half() + 0.03) and before(None, one, one.double())
    assert not kernelbench(torch.float16, one.half(), one.half() + 0.015)
    assert kernelbench(single, one * torch.nan, one * torch.nan) and kernelbench(single, (one,), (one,))
    assert kernelbench(single, one, one[:1]) and kernelbench(single, one, one.double())
    assert not flashinfer(None, {"a": one}, {"a": one + 0.009}) and flashinfer(None, {"a": one}, {"a": one + 0.02})
    assert not flashinfer(None, 1000 * one, 1000 * one + 5)  # relative
    assert not flashinfer(None, 1e-3 * one, 0 * one)  # absolute: zeros pass
    assert flashinfer(None, one * torch.inf, one * torch.inf) and flashinfer(None, one, (one, one))


@pytest.mark.parametrize("rules", ["kernelbanch", "", "all,", 3])
def test_other_names_are_refused(rules):
    with pytest.raises(KernelwrightError) as error:
        JudgeSettings(rules=rules)
    assert "--rules" in str(error.value) and "kernelbench" in error.value.why
