"""The API as Python shows it: names, types, examples, and a result that says what it is."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
import textwrap
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clocks import PATIENCE
from forks import ran
from places import ROOT

import kernelwright
from kernelwright.errors import InvalidOption, OutputExists
from kernelwright.judge.settings import JudgeSettings
from kernelwright.settings import TARGET_NAMES, Options, Settings, Target

MODEL = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self, width, scale=1.0):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return torch.softmax(torch.tanh(x) * self.scale + 1.0, -1)

    def get_inputs():
        return [torch.randn(32, 64)]

    def get_init_inputs():
        return [[64], {"scale": 2.0}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    (folder / "model.py").write_text(textwrap.dedent(MODEL))
    (folder / "mine.py").write_text(textwrap.dedent(MODEL).replace("class Model", "class ModelNew"))
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> kernelwright.Result:
    return kernelwright.optimize(folder / "model.py", target="cpp", effort="quick", baselines="none")


def test_a_result_says_what_it_is(result: kernelwright.Result) -> None:
    """In about five lines: verdict, accuracy, file, notes; at most a line for each."""
    lines = repr(result).splitlines()
    assert 4 <= len(lines) <= 6 and lines[0] == f"model: C++ kernels for {result.device}"
    labels = [line.split(":")[0].strip() for line in lines[1:]]
    assert [label.split(" (")[0] for label in labels] == ["speed-up", "accuracy", "file", "notes"]
    assert "PyTorch's own: " in repr(result) and str(result.path) in repr(result) and len(repr(result)) < 1000
    evil = replace(result, notes=("<script>alert(1)</script>",))
    page = evil._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<details>" in page and page.count("<tr>") == 4
    assert result.report().splitlines()[0] in result.report(width=60) and "Algebra" not in repr(result)


def test_how_much_faster_it_is(result: kernelwright.Result) -> None:
    first, timing = result.modes[0], result.timing
    assert timing is not None and first.runs
    expected = timing.speed_up()
    assert result.speedup in (None, expected.value)
    busy = replace(timing, entries={n: replace(t, busy=True) for n, t in timing.entries.items()})
    assert replace(result, modes=(replace(first, timing=busy),)).speedup is None
    assert replace(result, modes=(replace(first, timing=None),)).speedup is None
    assert replace(result, modes=(replace(first, kernels=(), launched="", timing=None),)).speedup == 1.0


def test_a_result_is_saved_once(result: kernelwright.Result, tmp_path: Path) -> None:
    path = result.save(str(tmp_path / "fast.py"))
    assert path.read_text() == result.source
    with pytest.raises(OutputExists):
        result.save(path)
    assert result.save(path, force=True) == path
    with pytest.raises(InvalidOption):
        result.save(tmp_path / "fast.txt")


def test_the_snippet_can_be_pasted(result: kernelwright.Result, folder: Path) -> None:
    """With the arguments themselves: the file has no get_init_inputs."""
    lines = result.report().split("Written to ")[1].splitlines()[1:]
    program = "\n".join(line.strip() for line in lines)
    assert "ModelNew(64, scale=2.0)" in program
    done = ran(program + "\nprint(model.scale)", folder=folder)
    assert done.stdout.strip() == "2.0", done.stderr


def test_the_package_shows_its_names_alone() -> None:
    assert [name for name in dir(kernelwright) if not name.startswith("_")] == sorted(kernelwright.__all__)
    assert all(getattr(kernelwright, name).__doc__ for name in kernelwright.__all__)


def test_options_are_declared_twice_alike() -> None:
    """As settings, and as what functions take by keyword; targets are those that there are."""
    hints = typing.get_type_hints(Settings)
    assert list(typing.get_type_hints(Options)) == [option.name for option in fields(Settings)]
    wider = {"dynamic", "dtypes"}  # a dictionary, or types themselves, which settings hold as texts
    assert all(hint in (hints[name], hints[name] | str) or name in wider
               for name, hint in typing.get_type_hints(Options).items())
    assert typing.get_args(Target) == ("auto", *TARGET_NAMES)
    for option in fields(Settings):
        assert option.metadata["choices"] == (typing.get_args(hints[option.name])
                                              if typing.get_origin(hints[option.name]) is typing.Literal else ())


_TYPED = """
from typing import assert_type
import kernelwright
from kernelwright.timing.baselines import Timing
from kernelwright.verify.certificate import Certificate
from torch import nn

result = kernelwright.optimize("model.py", effort="quick", precision="strict", output="fast.py")
assert_type(result.module, nn.Module | None)
assert_type(result.timing, Timing | None)
assert_type(result.certificate, Certificate | None)
assert_type(result.speedup, float | None)
kernelwright.explain("model.py", target="cpp", threads=2)
kernelwright.Settings(launch="graph")
kernelwright.optimize("model.py", efort="quick")
kernelwright.optimize("model.py", precision="exact")
kernelwright.explain("model.py", target="metal")
kernelwright.Settings(baselines="some")
kernelwright.JudgeSettings(effort="long")
kernelwright.compile(nn.ReLU(), effort="quick", budget=20)
kernelwright.compile(nn.ReLU(), efort="quick")
kernelwright.compile(nn.ReLU(), effort="slow")
"""


def test_type_checkers_know_the_options(tmp_path: Path) -> None:
    """What is right passes, and each wrong name and value is an error in its line."""
    checker = Path(sys.executable).with_name("pyrefly")
    if not checker.exists():
        pytest.skip("no type checker is installed")
    (tmp_path / "uses.py").write_text(_TYPED)
    (tmp_path / "pyrefly.toml").write_text(f'project-includes = ["uses.py"]\nsearch-path = ["{ROOT}"]\n'
                                           f'python-interpreter-path = "{sys.executable}"\n')
    done = subprocess.run([str(checker), "check", "--output-format", "min-text"], capture_output=True, text=True,
                          cwd=tmp_path, timeout=PATIENCE, check=False)
    wrong = {int(line.split("uses.py:")[1].split(":")[0]) for line in done.stdout.splitlines()
             if "uses.py:" in line and "ERROR" in line}
    lines = _TYPED.splitlines()
    expected = {number for number, line in enumerate(lines, 1) if any(
        word in line for word in ("efort", '"exact"', '"metal"', '"some"', '"long"', '"slow"'))}
    assert wrong == expected, done.stdout + done.stderr


def documented() -> list[tuple[str, Any]]:
    found = [(name, getattr(kernelwright, name)) for name in kernelwright.__all__]
    return found + [(f"Result.{name}", value) for name, value in vars(kernelwright.Result).items()
                    if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))]


@pytest.mark.parametrize(("name", "thing"), documented(), ids=[name for name, _ in documented()])
def test_examples_in_docstrings(name: str, thing: Any, result: kernelwright.Result, folder: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name of the API has an example, which gives what it says."""
    monkeypatch.chdir(folder)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {
        "kernelwright": kernelwright, "torch": torch, "result": result, "Settings": Settings,
        "JudgeSettings": JudgeSettings, "load_problem": kernelwright.load_problem}, name, None, None)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(example, out=said.append).failed == 0, "".join(said)
