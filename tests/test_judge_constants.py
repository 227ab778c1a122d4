"""Fixed values of a state: a candidate whose constructor makes others of them is told so."""

import textwrap

import pytest

from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear, self.norm = nn.Linear(size, size), nn.LayerNorm(size)
        self.register_buffer("window", torch.hann_window(size, periodic=True))
        self.register_buffer("steps", torch.arange(size), persistent=False)
        self.register_buffer("noise", torch.randn(size))

    def forward(self, x):
        return self.norm(self.linear(x) * self.window + self.noise) + self.steps


def get_inputs():
    return [torch.randn(6, 20)]


def get_init_inputs():
    return [20]
"""
OTHERS = {
    "right": ("", ""),
    # Draws in another order, and a table that is rounded otherwise, are nothing to say.
    "order": ("self.linear, self.norm = nn.Linear(size, size), nn.LayerNorm(size)",
              "self.noise_first = torch.randn(3).sum().item()\n"
              "        self.linear, self.norm = nn.Linear(size, size), nn.LayerNorm(size)"),
    "rounded": ("torch.hann_window(size, periodic=True)",
                "(0.5 - 0.5 * torch.cos(2 * torch.pi * torch.arange(size) / size))"),
    "window": ("periodic=True", "periodic=False"),
    "steps": ("torch.arange(size)", "torch.arange(size).flip(0)"),
    "ones": ("nn.LayerNorm(size)", "nn.LayerNorm(size)\n        nn.init.constant_(self.norm.weight, 0.5)"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("constants")
    (folder / "problem.py").write_text(PROBLEM)
    text = textwrap.dedent(PROBLEM).replace("class Model", "class ModelNew")
    for name, (old, new) in OTHERS.items():
        assert not old or text.count(old) == 1, name
        (folder / f"{name}.py").write_text(text.replace(old, new, 1) if old else text)
    files = [folder / f"{name}.py" for name in OTHERS]
    settings = JudgeSettings(target="cpp", effort="quick", time=False)
    result = judge(folder / "problem.py", files, settings, Progress())
    return dict(zip(OTHERS, result.candidates, strict=True))


@pytest.mark.parametrize("name", ["right", "order", "rounded"])
def test_the_same_values_are_nothing_to_say(name, verdicts):
    assert verdicts[name].verdict == "OK", verdicts[name].reason


@pytest.mark.parametrize(("name", "value"), [("window", "window"), ("steps", "steps"), ("ones", "norm.weight")])
def test_other_fixed_values_are_told(name, value, verdicts):
    found = verdicts[name]
    assert found.verdict == "OK-BUT" and f"its constructor makes {value} other than the model's" in found.limits[0]
    assert found.reason.startswith("Its constructor makes")
