"""The judge on a problem whose calls leave tensors in plain attributes, of which the first call makes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.judge.records import JudgeResult
from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = '''
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, features)
        self.mem = None
        self.last = None

    def forward(self, x):
        if self.mem is None:
            self.mem = torch.zeros_like(x)
        self.mem = 0.9 * self.mem + torch.tanh(self.layer(x))
        self.last = self.mem.detach()
        return torch.sigmoid(self.mem) * 2 - 1


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32]
'''
#: Name of a candidate: what it writes in place of what, its verdict, and words of the reason.
CANDIDATES = {
    "right": (("0.9 * self.mem + torch.tanh(self.layer(x))", "torch.tanh(self.layer(x)).add(self.mem, alpha=0.9)"),
              "OK", ""),
    "forgets": (("self.mem = 0.9 * self.mem", "mem = 0.9 * self.mem"), "WRONG-STATE", "mem"),
    "starts_anew": (("0.9 * self.mem +", ""), "WRONG-NUMERIC", ""),
    "leaves_nothing": (("        self.last = self.mem.detach()\n", ""), "WRONG-STATE",
                       "The model updates last, the candidate does not have it"),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> JudgeResult:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "problem.py").write_text(PROBLEM)
    for name, ((old, new), _, _) in CANDIDATES.items():
        text = PROBLEM.replace("class Model(", "class ModelNew(")
        assert old in text, name
        text = text.replace(old, new)
        if name == "forgets":
            text = text.replace("self.last = self.mem", "self.last = mem").replace("sigmoid(self.mem)", "sigmoid(mem)")
        (folder / f"{name}.py").write_text(text)
    return judge(folder / "problem.py", [folder / f"{name}.py" for name in CANDIDATES],
                 JudgeSettings(target="cpp", effort="quick", time=False), Progress())


@pytest.mark.parametrize("name", CANDIDATES)
def test_verdicts(judged: JudgeResult, name: str) -> None:
    candidate = next(c for c in judged.candidates if Path(c.file).stem == name)
    _, verdict, words = CANDIDATES[name]
    assert candidate.verdict == verdict and words in candidate.reason, candidate.reason


def test_the_problem_is_said_to_keep_a_state(judged: JudgeResult) -> None:
    assert any("A call changes" in words and "mem" in words for words in judged.problem_profile["words"])
