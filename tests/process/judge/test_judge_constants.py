"""Fixed values of a state: a candidate whose constructor makes others of them is told so."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from kernelwright.judge.check.constants import fixed_state, otherwise_made
from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.problem.load import load_problem
from kernelwright.progress import Progress

PROBLEM = """
import torch
from torch import nn


DRAWN = torch.randn(1)


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("drawn", DRAWN.clone())
        self.register_buffer("ones", torch.ones(size).to(torch.float8_e4m3fn))
        self.linear, self.norm = nn.Linear(size, size), nn.LayerNorm(size)
        self.register_buffer("window", torch.hann_window(size, periodic=True))
        self.register_buffer("steps", torch.arange(size), persistent=False)
        self.register_buffer("noise", torch.randn(size))

    def forward(self, x):
        return self.norm(self.linear(x) * self.window + self.noise) + self.steps + self.drawn


def get_inputs():
    return [torch.randn(6, 20)]


def get_init_inputs():
    return [20]
"""
OTHERS = {
    "right": ("", ""),
    # Draws in another order, or in another run of the file, and a table that is rounded otherwise, are nothing to say.
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


def _other(one: torch.Tensor, other: torch.Tensor) -> str:
    module = nn.Module()
    module.register_buffer("table", other)
    return otherwise_made({"table": one}, module)


def _sines(positions: int, dtype: torch.dtype) -> torch.Tensor:
    frequencies = 10000 ** -(torch.arange(32, dtype=dtype) / 32)
    return torch.outer(torch.arange(positions, dtype=dtype), frequencies).cos().float()


def test_values_that_are_rounded_otherwise():
    table = _sines(4096, torch.float64)
    assert (table - _sines(4096, torch.float32)).abs().max() > 1e-4  # of large arguments
    assert _other(table, _sines(4096, torch.float32)) == ""
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64):
        assert _other(table.to(dtype), table.to(dtype)) == ""
    up = torch.nextafter(table.half(), torch.full_like(table, 2).half())
    assert _other(table.half(), up) == ""


def test_values_that_are_others():
    assert _other(torch.tensor(1e-5), torch.tensor(1e-6))
    assert _other(torch.hann_window(4096), torch.hann_window(4096, periodic=False))
    assert _other(_sines(4096, torch.float64), _sines(4097, torch.float64)[1:])
    mask = torch.full((8, 8), -1e9).triu(1)
    assert _other(mask, mask + torch.eye(8)) and _other(mask, mask.triu(2))
    infinite = torch.full((8, 8), -torch.inf).triu(1)
    assert _other(infinite, infinite.nan_to_num(0, 0, 0)) and _other(infinite.nan_to_num(0, 0, 0), infinite)
    assert not _other(infinite, infinite.clone()) and not _other(infinite * torch.nan, infinite * torch.nan)


def test_a_file_that_runs_but_once(tmp_path):
    path = tmp_path / "once.py"
    path.write_text(PROBLEM + "\nimport sys\nassert not hasattr(sys, 'ran_once')\nsys.ran_once = True\n")
    try:
        problem = load_problem(path, device="cpu")
        fixed = fixed_state(problem, problem.make_model(0), 0)
    finally:
        vars(sys).pop("ran_once", None)
    assert "window" in fixed and "noise" not in fixed
