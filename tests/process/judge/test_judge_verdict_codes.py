"""The code and the sentence of a verdict where nothing is diagnosed: each attack beside its honest twin."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernelwright.judge.diagnose.misfit import find_misfit
from kernelwright.judge.diagnose.words import classify
from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x):
        return self.norm(F.gelu(self.linear(x)))

def get_inputs():
    return [torch.randn(96, 64)]
"""
NEW = PROBLEM.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
LINEAR, NORM, MADE = "self.linear(x)", "self.norm(", "self.norm = nn.LayerNorm(32)\n"
FOLDED = NEW.replace(MADE, MADE + "        with torch.no_grad():\n            self.linear.weight.mul_(0.5)\n")
KEPT = NEW.replace(MADE, MADE + "        self.register_buffer('doubled', 2 * self.linear.weight.detach())\n")
USES = "F.linear(x, self.doubled / 2, self.linear.bias)"
PLAIN = NEW.replace(MADE, "pass\n").replace("self.norm(F", "F.layer_norm(F").replace("(x)))", "(x)), (32,), eps=EPS)")
#: By name: the text, the verdict, and words of its reason.
CANDIDATES = {
    "right": (NEW, "OK", ""),
    "few_digits": (NEW.replace(LINEAR, "F.linear(x.bfloat16(), self.linear.weight.bfloat16(), "
                               "self.linear.bias.bfloat16()).float()"), "WRONG-PRECISION", ""),
    "other_gelu": (NEW.replace(LINEAR, f"{LINEAR}, approximate='tanh'"), "WRONG-NUMERIC", ""),
    "folds_once": (FOLDED.replace(LINEAR, "F.linear(x, 2 * self.linear.weight, self.linear.bias)"), "WRONG-PARAMETERS",
                   "makes linear.weight 0.5 times the model's"),
    "folds_always": (NEW.replace(LINEAR, "F.linear(x / 2, 2 * self.linear.weight, self.linear.bias)"), "OK", ""),
    "made_once": (KEPT.replace(LINEAR, USES), "WRONG-PARAMETERS", "doubled is made of them once"),
    "made_always": (KEPT.replace("return", "self.doubled.copy_(2 * self.linear.weight.detach())\n        return"
                                 ).replace(LINEAR, USES), "OK-BUT", "doubled"),
    # The model's ones and zeros are no reason for what is wrong with other values, and can never follow them.
    "wrong_without_norm": (PLAIN.replace("EPS", "1e-2"), "WRONG-NUMERIC", "as given"),
    "right_without_norm": (PLAIN.replace("EPS", "1e-5"), "WRONG-PARAMETERS", "norm.weight and norm.bias"),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("codes")
    (folder / "problem.py").write_text(PROBLEM)
    for name, (text, _, _) in CANDIDATES.items():
        assert name == "right" or text != NEW
        (folder / f"{name}.py").write_text(text)
    settings = JudgeSettings(target="cpp", effort="quick", verdict_only=True, seed=11)
    found = judge(folder / "problem.py", [folder / f"{name}.py" for name in CANDIDATES], settings, Progress())
    return dict(zip(CANDIDATES, found.candidates, strict=True))


@pytest.mark.parametrize("name", CANDIDATES)
def test_verdict_and_reason(judged, name):
    _, verdict, words = CANDIDATES[name]
    assert judged[name].verdict == verdict, judged[name].reason
    assert words in judged[name].reason, judged[name].reason


@pytest.mark.parametrize(("wrong_values", "verdict"), [(False, "WRONG-ALIAS"), (True, "WRONG-PARAMETERS")])
def test_right_values_in_memory_of_others_are_no_matter_of_parameters(wrong_values, verdict):
    """Where outputs do not depend on what a candidate lacks, its values are right without."""
    output = SimpleNamespace(passed=not wrong_values, kinds=("output",) if wrong_values else ())
    comparison = SimpleNamespace(passed=not wrong_values, outputs=[output], structure=())
    trial = SimpleNamespace(gates=True, passed=False, kinds=("alias",), comparison=comparison, against_eager=None,
                            state=None)
    certificate = SimpleNamespace(passed=False, trials=(trial,), state_problems=(), gradients=None, why=("",))
    misfit = find_misfit(torch.nn.Linear(3, 3), torch.nn.Module(), None)
    assert misfit is not None and classify(certificate, [misfit]) == verdict


def test_parameters_under_other_names_explain_no_random_numbers():
    """Nor do they hide that others were drawn."""
    output = SimpleNamespace(passed=False, kinds=("output",), relative=0.5)
    comparison = SimpleNamespace(passed=False, outputs=[output], structure=())
    plan = SimpleNamespace(redrawn_parameters=False, distribution="as given", changes_parameters=False)
    trial = SimpleNamespace(gates=True, passed=False, kinds=(), comparison=comparison, against_eager=None, state=None,
                            uses_randomness=True, plan=plan)
    certificate = SimpleNamespace(passed=False, trials=(trial,), state_problems=(), gradients=None, why=("",))
    misfit = find_misfit(torch.nn.Linear(3, 3), torch.nn.Module(), None)
    assert misfit is not None
    misfit.evidence["held"] = True
    assert classify(certificate, [misfit]) == classify(certificate, []) == "WRONG-RANDOM"
