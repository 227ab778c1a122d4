"""The judge as a whole: its command on candidates of every kind, and what one run says of all of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from places import TESTS
from schemas import assert_fits

import kernelwright
from kernelwright import cli
from kernelwright.judge import run as judge_run
from kernelwright.judge.clock.timing import Clocked
from kernelwright.judge.records import CandidateResult, Finding, Refusal
from kernelwright.judge.report.text import render_text
from kernelwright.judge.selftest import SelfTest
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS

SEVEN = TESTS / "candidates" / "transposed_mean"
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.scale = nn.Parameter(torch.rand(features))

    def forward(self, x):
        return torch.softmax(self.norm(x) * self.scale, dim=1)

def get_inputs():
    return [torch.rand(48, 96)]

def get_init_inputs():
    return [96]
"""
RIGHT = PROBLEM.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
CHANGES = {
    "right.py": lambda text: text,
    "copy.py": lambda text: text + "# the same\n",
    "no_scale.py": lambda text: text.replace(" * self.scale, dim", ", dim"),
    "wrong_axis.py": lambda text: text.replace("dim=1", "dim=0"),
    "no_affine.py": lambda text: text.replace("self.norm(x)", "nn.functional.layer_norm(x, (96,))"),
    "raises.py": lambda text: text.replace("self.norm(x)", "self.norm(x.view(7, -1))"),
    "lacks_layer.py": lambda text: text.replace("self.norm = nn.LayerNorm(features)\n", "pass\n"),
    "small.py": lambda text: text.replace("self.norm(x)", "self.norm(x[:1])"),
    "half.py": lambda text: text.replace("self.norm(x) * self.scale", "(self.norm(x) * self.scale).bfloat16()")
    .replace("dim=1)", "dim=1).float()"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A problem, and candidates beside it."""
    place = tmp_path_factory.mktemp("judged")
    (place / "problem.py").write_text(PROBLEM)
    (place / "candidates").mkdir()
    for name, change in CHANGES.items():
        text = change(RIGHT)
        assert text != RIGHT or name == "right.py"
        (place / "candidates" / name).write_text(text)
    return place


@pytest.fixture(scope="module")
def judged(folder):
    """One run over all of them."""
    settings = kernelwright.JudgeSettings(target="cpp", effort="quick", seed=5)
    return kernelwright.judge_files(folder / "problem.py", [folder / "candidates"], settings)


def of(judged, name):
    return next(c for c in judged.candidates if Path(c.file).name == name)


@pytest.mark.parametrize(("name", "verdict", "words"), [
    ("right.py", "OK", "Passed"), ("copy.py", "OK", "Passed"),
    ("no_scale.py", "WRONG-NUMERIC", "problem.py:12"),
    ("wrong_axis.py", "WRONG-NUMERIC", "axis"),
    # Right as constructed, where weights are one and biases zero.
    ("no_affine.py", "WRONG-PARAMETERS", "other parameters"),
    ("raises.py", "CRASH-RAISED", "[7, -1]"),
    ("lacks_layer.py", "BUILD-INCOMPLETE", "'norm'"),
    ("small.py", "WRONG-SHAPE", "(48, 96)"),
    ("half.py", "WRONG-PRECISION", "bfloat16"),
])
def test_each_has_its_own_verdict_and_reason(judged, name, verdict, words):
    found = of(judged, name)
    assert (found.verdict, words in found.reason) == (verdict, True), (found.verdict, found.reason)
    assert (found.timing is not None) is VERDICTS[verdict].passed, "a time only beside a passed check"
    if not VERDICTS[verdict].passed:
        assert found.findings and (found.fix or found.verdict == "CRASH-RAISED")


def test_copies_tie_and_the_document_says_the_same(judged):
    right, copy = of(judged, "right.py"), of(judged, "copy.py")
    assert right.rank_class == copy.rank_class and right.precision == copy.precision == "float32"
    assert next((Path(a.file).name, a.share) for a in right.alike if a.of == "candidate") == ("copy.py", 1.0)
    assert any(a.of == "problem" and a.share == 1 for a in right.alike)
    assert [shape.words for shape in right.shapes] == ["the problem's own", "batch of 1", "batch of 49", "batch of 3"]
    assert all(shape.right for shape in right.shapes) and not of(judged, "raises.py").shapes
    document = json.loads(json.dumps(judged.to_json(), allow_nan=False))
    assert_fits(document, "judge")
    assert [c["verdict"] for c in document["candidates"]] == [c.verdict for c in judged.candidates]
    assert document["exit_status"] == 1 and document["selftest"]["passed"] and document["seed"] == 5
    assert sum(len(tied) for tied in document["ranking"][right.rank_class]) == 2
    assert "namespace" in document["isolation"] or "limits" in document["isolation"]


RECURRENT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.layer = nn.GRU(features, hidden, 2)

    def forward(self, x, state):
        return self.layer(x, state)[0]

def get_inputs():
    return [torch.rand(7, 3, 8), torch.rand(2, 3, 16)]

def get_init_inputs():
    return [8, 16]
"""


def test_a_verdict_alone_is_the_same_verdict(folder, judged):
    settings = kernelwright.JudgeSettings(target="cpp", effort="quick", seed=5, verdict_only=True)
    alone = kernelwright.judge_files(folder / "problem.py", [folder / "candidates"], settings)
    assert [VERDICTS[c.verdict].family for c in alone.candidates] == \
        [VERDICTS[c.verdict].family for c in judged.candidates]
    for found, usual in zip(alone.candidates, judged.candidates, strict=True):
        assert found.timing is None and found.reason
        trials = [c.certificate.trials if c.certificate else () for c in (found, usual)]
        if found.verdict.startswith("WRONG"):  # the first trial that is wrong ends it; two of the problem's own say why
            wrong = [t.plan for t in trials[0] if t.gates and not t.passed]
            assert len(wrong) == 1 or (wrong[0].redrawn_parameters and len(wrong) <= 3
                                       and {plan.distribution for plan in wrong[1:]} == {"as given"})
            assert len(trials[0]) <= len(trials[1])
    assert_fits(json.loads(json.dumps(alone.to_json(), allow_nan=False)), "judge")


def test_a_diagnosis_ends_with_its_budget_and_says_what_was_not_tried(folder):
    settings = kernelwright.JudgeSettings(target="cpp", effort="quick", seed=5, time=False, diagnose_budget=1e-9)
    result = kernelwright.judge_files(folder / "problem.py", [folder / "candidates" / "no_scale.py"], settings)
    cut, = result.candidates
    assert cut.verdict == "WRONG-NUMERIC" and "problem.py:12" not in cut.reason
    for words in ("patterns", "changes of the model"):
        assert words in cut.untried.lower()
    assert f"not tried: {cut.untried[:20]}" in render_text(result, width=200)


def test_recurrent_layers_have_the_parameters_that_the_judge_draws(tmp_path):
    """They compute with a list of their own weights, which is no state beside them."""
    (tmp_path / "problem.py").write_text(RECURRENT)
    text = RECURRENT.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    frozen = text.replace("return self.layer(x, state)[0]", """if not hasattr(self, "kept"):
            self.kept = [[p.detach().clone() for p in self.layer.parameters()]]
        parameters = dict(zip(dict(self.layer.named_parameters()), self.kept[0]))
        return torch.func.functional_call(self.layer, parameters, (x, state))[0]""")
    (tmp_path / "right.py").write_text(text)
    (tmp_path / "frozen.py").write_text(frozen)
    settings = kernelwright.JudgeSettings(target="cpp", effort="quick", seed=5, time=False)
    found = kernelwright.judge_files(tmp_path / "problem.py", [tmp_path / "right.py", tmp_path / "frozen.py"], settings)
    assert of(found, "right.py").verdict == "OK", of(found, "right.py").reason
    assert not VERDICTS[of(found, "frozen.py").verdict].passed
    assert "do not change the outputs" not in " ".join(found.problem_profile["words"])


def test_an_unfit_judge_says_nothing_of_anybody(folder, monkeypatch):
    monkeypatch.setattr(judge_run, "self_test", lambda *_: SelfTest(False, ("A wrong control passed.",)))
    found = kernelwright.judge_files(folder / "problem.py", [folder / "candidates" / "right.py"],
                                     kernelwright.JudgeSettings(target="cpp", effort="quick", time=False))
    assert found.candidates[0].verdict == "JUDGE-UNFIT" and found.exit_status == 3
    assert found.candidates[0].timing is None and "A wrong control passed." in found.candidates[0].reason


@pytest.mark.slow
def test_the_seven_solutions(tmp_path, capfd):
    """Seven solutions of one task, all wrong: each gets its own reason and what would mend it."""
    place = tmp_path / "task"
    shutil.copytree(SEVEN, place)
    arguments = ["judge", str(place / "model.py"), *(str(f) for f in sorted(place.glob("solution_*.py"))), "--tiny",
                 "--target", "cpp", "--effort", "quick", "--no-time", "--json", "--quiet", "--limit", "1200"]
    assert cli.run(arguments) == 1
    candidates = json.loads(capfd.readouterr().out)["candidates"]
    expected = ["BUILD-EMPTY", "BUILD-EMPTY", "BUILD-SYNTAX", "BUILD-SYNTAX", "BUILD-SYNTAX", "BUILD-NO-CLASS",
                "BUILD-INCOMPLETE"]
    assert [c["verdict"] for c in candidates] == expected
    assert len({c["reason"] for c in candidates}) == 7 and all(c["fix"] for c in candidates)
    last = candidates[-1]
    assert "conv_transpose" in last["reason"] and "nn.ConvTranspose2d" in last["fix"]
    found = " ".join(f["sentence"] for f in last["findings"])
    for words in ("placeholder", "no error of the launch is looked at", "#define"):
        assert words in found, f"{words}: {found}"


@pytest.mark.parametrize(("verdict", "stands"), [("JUDGE-ERROR", "OK"), ("JUDGE-BUSY", "JUDGE-BUSY"),
                                                 ("CHEAT-TIMER", "CHEAT-TIMER")])
def test_a_clock_that_cannot_tell_gives_no_verdict_that_passes(verdict, stands):
    """Where the judge itself failed, the check stands without a time."""
    refusal = Refusal(verdict, Finding("clock-refuted", "Far apart.", "clock"))
    result = judge_run._timed(CandidateResult("a.py", "OK", "Right."), Clocked({"0": refusal}, None), "0", None, None,
                              JudgeSettings(), 0)
    assert (result.verdict, result.timing) == (stands, None) and result.findings == (refusal.finding,)


PRODUCT = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return 1.01 * (a @ b)

def get_inputs():
    return [torch.randn(16, 4096), torch.randn(4096, 16)]
"""
IN_16_BITS = {
    "rounded.py": ("a @ b", "(a @ b).half().float()"),
    "operands.py": ("a @ b", "(a.bfloat16() @ b.bfloat16()).float()"),
    "part.py": ("a @ b", "(a[:, 128:] @ b[128:]).half().float()"), "factor.py": ("1.01 * (a @ b)", "a @ b")}


@pytest.mark.parametrize("more", [{}, {"diagnose_budget": 1e-6}, {"verdict_only": True}], ids=str)
def test_any_precision_takes_what_it_says(tmp_path, more):
    """Elements that cancel, and the end of float16's range, are what 16 bits are; a part that is missing is not, and
    neither is a factor that is as near to one. What is asked for beside the verdict does not change it."""
    (tmp_path / "problem.py").write_text(PRODUCT)
    files = []
    for name, (own, changed) in IN_16_BITS.items():
        text = PRODUCT.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
        files.append(tmp_path / name)
        files[-1].write_text(text.replace(own, changed))
    settings = kernelwright.JudgeSettings(target="cpp", effort="quick", seed=5, precision="any", time=False, threads=1,
                                          **more)
    found = kernelwright.judge_files(tmp_path / "problem.py", files, settings)
    assert [c.verdict for c in found.candidates[:2]] == ["OK-BUT", "OK-BUT"], [c.reason for c in found.candidates]
    assert [c.verdict for c in found.candidates[2:]] == ["WRONG-NUMERIC", "WRONG-NUMERIC"]
    assert "1.01" in found.candidates[3].reason, found.candidates[3].reason
    assert any("leave their range on inputs large" in limit for limit in found.candidates[0].limits)
    assert not any("range" in limit for limit in found.candidates[1].limits)  # bfloat16 has float32's
    assert_fits(found.to_json(), "judge")
