"""A model that returns its own parameters: a candidate that does so is right, other values are not."""

import pytest

from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 8))

    def forward(self, x):
        return torch.relu(x @ self.weight), self.weight, {"kept": [self.weight]}


def get_inputs():
    return [torch.rand(16, 64)]


def get_init_inputs():
    return []
"""
OTHERS = {
    "right": ("", ""),
    "plain": ("), self.weight,", "), self.weight.detach(),"),
    "other-values": ("), self.weight,", "), nn.Parameter(self.weight + 1e-2),"),
    "no-plain-result": ("torch.relu(x @ self.weight)", "nn.Parameter(torch.relu(x @ self.weight))"),
    "derived": ("[self.weight]", "[type('Own', (nn.Parameter,), {})(self.weight)]"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("returned")
    (folder / "problem.py").write_text(PROBLEM)
    text = PROBLEM.replace("class Model", "class ModelNew")
    for name, (old, new) in OTHERS.items():
        assert not old or text.count(old) == 1, name
        (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)
    files = [folder / f"{name}.py" for name in OTHERS]
    result = judge(folder / "problem.py", files, JudgeSettings(target="cpp", effort="quick"), Progress())
    return dict(zip(OTHERS, result.candidates, strict=True))


@pytest.mark.parametrize(("name", "verdict", "words"), [
    ("right", "OK", "Passed"), ("plain", "OK", "Passed"),
    ("other-values", "WRONG-NUMERIC", "output[1] is wrong everywhere"),
    ("no-plain-result", "WRONG-STRUCTURE", "output[0] is a Parameter, not a plain torch.Tensor"),
    ("derived", "CHEAT-OUTPUT-OBJECT", "output[2]['kept'][0] is a Own")])
def test_returned_parameters(verdicts, name, verdict, words):
    found = verdicts[name]
    assert found.verdict == verdict and words in found.reason, found.reason
    assert (found.timing is not None) == (verdict == "OK")
