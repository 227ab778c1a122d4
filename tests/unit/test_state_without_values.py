"""Models whose state cannot be copied, compared or handed over: told by a coded error, or taken as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from kernelwright.errors import StateNotPlain, StateWithoutValues
from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.problem.load import load_problem
from kernelwright.progress import Progress
from kernelwright.verify.distributions import DISTRIBUTIONS
from kernelwright.verify.observe import identical

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)
        STATE

    def forward(self, x):
        return self.linear(x.float())


def get_inputs():
    return [torch.randn(3, 5)INPUT]


def get_init_inputs():
    return []
"""
SETTINGS = JudgeSettings(target="cpp", effort="quick", time=False)


def written(folder: Path, state: str, inputs: str = "") -> Path:
    path = folder / "problem.py"
    path.write_text(MODEL.replace("STATE", state).replace("INPUT", inputs))
    (folder / "new.py").write_text(path.read_text().replace("class Model", "class ModelNew"))
    return path


@pytest.mark.parametrize(("state", "name", "words"), [
    ("self.lazy = nn.LazyLinear(3)", "lazy.weight", "lazy module"),
    ('self.register_buffer("empty", torch.ones(3, device="meta"))', "empty", "meta device")])
def test_a_model_without_values_is_told_so(state, name, words, tmp_path):
    problem = load_problem(written(tmp_path, state), device="cpu")
    with pytest.raises(StateWithoutValues, match=words) as caught:
        problem.make_model(0)
    assert f"holds {name}," in caught.value.what and str(tmp_path) in caught.value.where


def test_an_instance_without_values_is_told_so():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(StateWithoutValues, match=r"0\.weight"):
        load_problem(model, inputs=[torch.randn(2, 5)], device="cpu").make_model(0)


def test_the_judge_says_what_it_cannot_hand_over(tmp_path):
    path = written(tmp_path, 'self.register_buffer("mask", torch.eye(5).to_sparse())')
    with pytest.raises(StateNotPlain, match=r"holds mask, which is sparse_coo"):
        judge(path, [tmp_path / "new.py"], SETTINGS, Progress())


@pytest.mark.parametrize(("state", "inputs"), [
    ('self.register_buffer("halves", torch.ones(3, dtype=torch.complex32))', ""),
    ("", ".to(torch.float8_e4m3fn)")], ids=["complex32", "float8"])
def test_rare_types_are_judged(state, inputs, tmp_path):
    found = judge(written(tmp_path, state, inputs), [tmp_path / "new.py"], SETTINGS, Progress()).candidates[0]
    assert found.verdict == "OK", found.reason


def test_sparse_and_half_complex_values_are_compared():
    eye, other = torch.eye(5).to_sparse(), torch.eye(5).mul(2).to_sparse()
    assert identical(eye, torch.eye(5).to_sparse()) and not identical(eye, other)
    assert not identical(eye, torch.eye(5))
    one = torch.ones(3, dtype=torch.complex32)
    assert identical(one, one.clone()) and not identical(one, one.clone().mul_(2))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_have_values_of_8_bits(name):
    given = torch.randn(64).to(torch.float8_e5m2)
    (found,) = DISTRIBUTIONS[name].apply([given], 3, {"input[0]": 0})
    assert found.dtype == given.dtype and found.shape == given.shape
    if name not in ("as given", "constant"):
        assert not torch.equal(found.float(), given.float())
