"""Kept results: what makes another command of one, what is not kept, and what is not taken for a result."""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.cache import results
from kernelwright.cache.results import concluded, earlier_result, keep, name_of, recall
from kernelwright.failures import FAILED
from kernelwright.problem import load_problem
from kernelwright.problem.digest import NoDigest, digest_of
from kernelwright.programs import Stages
from kernelwright.progress import Progress
from kernelwright.records import LATE, UNTRIED
from kernelwright.settings import HOST_TARGET, Settings

MODEL = """
import json
import os
import random
import threading
import time
from pathlib import Path

import torch
from torch import nn
from helper_of_kept import scale

HERE = Path(__file__).parent
TABLE = json.loads((HERE / "table.json").read_text())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4) * float((HERE / "weight.txt").read_text()))
        self.names = {"one", "two", "three"}
        self.act = lambda x: x * 2.0
        # more

    def forward(self, x):
        return self.act(scale(x) * self.weight) + TABLE["a"]


def get_inputs():
    return [torch.randn(3, 4)]
"""
IN_CONSTRUCTOR, IN_FORWARD = "        # more\n", "        return self.act("


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, what it imports and what it reads. Files count as older than this process."""
    monkeypatch.setattr("kernelwright.problem.digest._began", lambda: math.inf)
    for name, text in (("model.py", MODEL), ("helper_of_kept.py", "def scale(x):\n    return x * 0.5\n"),
                       ("table.json", '{"a": 1.0}'), ("weight.txt", "3.0")):
        (tmp_path / name).write_text(text)
    return tmp_path


def name(folder: Path, **options) -> str:
    settings = Settings(**options)
    problem = load_problem(folder / "model.py", device="cpu")
    return name_of(problem, problem.make_inputs(settings.seed), HOST_TARGET, settings)


def written(file: str, text: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda folder, _: (folder / file).write_text(text)


def variable(name: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda _, patch: patch.setenv(name, "3")


def threads(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "get_num_threads", lambda: 77)


def compiler(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "compiler").write_text("")
    (folder / "compiler").chmod(0o755)
    patch.setenv("CXX", str(folder / "compiler"))


@pytest.mark.parametrize("change", [
    written("model.py", MODEL + "# another\n"), written("helper_of_kept.py", "def scale(x):\n    return x * 0.25\n"),
    written("table.json", '{"a": 2.0}'), written("weight.txt", "4.0"), variable("OMP_NUM_THREADS"), threads, compiler,
], ids=["text", "imported", "table", "weights", "variable", "threads", "compiler"])
def test_what_makes_another_command(folder, monkeypatch, change):
    """Nothing changed is the same command, wherever its results go; each change makes another one."""
    first = name(folder)
    assert first and first == name(folder, output=folder / "other.py", report="page.html", quiet=True, refresh=True)
    change(folder, monkeypatch)
    assert name(folder) not in ("", first)


def test_every_setting_counts(folder):
    names = [name(folder, **options) for options in (
        {}, {"seed": 1}, {"effort": "quick"}, {"budget": 3.0}, {"threads": 1}, {"precision": "strict"},
        {"baselines": "none"}, {"dynamic": ("x:0=1..4",)}, {"dtypes": ("bfloat16",)}, {"embed": True})]
    assert "" not in names and len(set(names)) == len(names)


@pytest.mark.parametrize("line", ["self.made = time.time_ns()", "self.made = random.SystemRandom().random()",
                                  "self.register_buffer('made', torch.tensor(int.from_bytes(os.urandom(4))))"])
def test_what_differs_from_run_to_run_is_never_found_again(folder, line):
    (folder / "model.py").write_text(MODEL.replace(IN_CONSTRUCTOR, f"        {line}\n"))
    assert name(folder) != name(folder)


def test_the_environment_counts_where_a_model_names_it(folder, monkeypatch):
    """By what comes of it, and every variable, as nobody knows which one is read."""
    name(folder)  # imports what the model does
    monkeypatch.setattr("kernelwright.problem.digest._modules_of_user",  # tests name the environment, too
                        lambda problem: [sys.modules["helper_of_kept"]])
    first = name(folder)
    monkeypatch.setenv("NEITHER", "1")
    assert name(folder) == first
    (folder / "model.py").write_text(MODEL.replace(IN_CONSTRUCTOR, "        self.n = os.environ.get('NEI' + 'THER')\n"))
    found = {value: (monkeypatch.setenv("NEITHER", value), name(folder))[1] for value in "123"}
    assert "" not in found.values() and len(set(found.values())) == 3


@pytest.mark.parametrize(("where", "line"), [
    (IN_CONSTRUCTOR, "        self.lock = threading.Lock()\n"),
    (IN_FORWARD, "        x = x + time.time()\n        return self.act("),
    (IN_FORWARD, "        x = x + float(open('weight.txt').read())\n        return self.act(")],
    ids=["lock", "clock", "file"])
def test_what_nobody_can_compare_has_no_name(folder, where, line):
    (folder / "model.py").write_text(MODEL.replace(where, line))
    assert name(folder) == ""


def test_a_file_that_was_changed_after_it_may_have_been_imported_has_no_name(folder, monkeypatch):
    monkeypatch.setattr("kernelwright.problem.digest._began", lambda: os.stat(folder / "helper_of_kept.py").st_mtime)
    assert name(folder) == ""


class Pair(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.other.weight.copy_(self.one.weight.fill_(1.0))
        if tied:
            self.other.weight = self.one.weight

    def forward(self, x):
        return self.one(self.other(x))


def test_values_and_what_shares_memory(monkeypatch):
    """Equal weights are not tied ones; classes that stand in no file have no digest."""
    monkeypatch.setattr("kernelwright.problem.digest._began", lambda: math.inf)

    def digest(model: nn.Module, x: torch.Tensor) -> str:
        return digest_of(load_problem(model, inputs=(x,), device="cpu"), [x], 0)

    x = torch.ones(3, 2)
    found = [digest(Pair(tied), values) for tied, values in
             ((True, x), (False, x), (False, x + 1), (False, x.T.contiguous().T))]
    assert len(set(found)) == 4 and digest(Pair(False), x.clone()) == found[1]
    monkeypatch.setattr(Pair, "__module__", "nowhere")
    with pytest.raises((NoDigest, KeyError)):
        digest(Pair(True), x)


@pytest.fixture
def result() -> kernelwright.Result:
    return kernelwright.explain(nn.Tanh(), inputs=(torch.ones(3, 4),), target="c")


def test_a_result_is_kept_as_it_is(result):
    keep("name", result)
    found = recall("name")
    assert found is not None and found.kept_since and replace(found, kept_since=None) == replace(result, path=None)
    assert recall("another") is None and found.report().splitlines()[0] == result.report().splitlines()[0]


class Foreign:
    def __reduce__(self):
        return os.mkdir, ("made_by_a_cache",)


def test_damaged_and_foreign_files_are_no_results(result, tmp_path, monkeypatch):
    """A cache may come from another machine: nothing in it runs."""
    monkeypatch.chdir(tmp_path)
    keep("name", result)
    path = tmp_path / "cache" / "results" / "name.result"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole.replace(b"Tanh", b"Tann")):
        path.write_bytes(damaged)
        assert recall("name") is None
    for foreign in (pickle.dumps(Foreign()), pickle.dumps("text")):
        path.write_bytes(results._head(foreign) + foreign)
        assert recall("name") is None and not (tmp_path / "made_by_a_cache").exists()


@pytest.mark.parametrize("note", [f"{UNTRIED}measure 3 regions.", f"A mode failed. {LATE}", f"Something: {FAILED}."])
def test_what_a_further_run_may_better_is_not_kept(result, note):
    done = replace(result, modes=(), notes=("A note.",))
    found = concluded(replace(done, notes=(note,)), "name", "")
    assert recall("name") is None and found.notes[0] == note and "will not answer" in found.notes[1]
    assert "is not timed" in concluded(replace(done, modes=result.modes), "name", "").notes[-1]
    assert concluded(done, "", "") is done and recall("name") is None
    assert concluded(done, "name", "It was wrong.").notes == ("A note.", "It was wrong.") and recall("name")


def test_a_kept_file_that_is_wrong_now_is_not_taken(folder, tmp_path):
    """Its model has changed in a way that no digest saw: one comparison does."""
    text = "from torch import nn\nimport torch\nclass Model(nn.Module):\n    def forward(self, x):\n" \
           "        return torch.tanh(x) {}\ndef get_inputs():\n    return [torch.randn(3, 4)]\n"
    problems = []
    for number, sign in enumerate("+-"):
        (tmp_path / f"{number}.py").write_text(text.format(f"{sign} 1.0"))
        problems.append(load_problem(tmp_path / f"{number}.py", device="cpu"))
    explained = kernelwright.explain(tmp_path / "0.py", target="c")
    # The original's own text stands in for a file with kernels, which would have to be compiled.
    keep("name", replace(explained, source=text.format("+ 1.0").replace("class Model(", "class ModelNew(")))
    stages = Stages(Progress())
    found, fault = earlier_result("name", problems[0], Settings(), stages)
    assert found is not None and not fault and found.module(torch.zeros(1)).item() == 1.0
    assert "kept result: the same command made it at" in found.report()
    found, fault = earlier_result("name", problems[1], Settings(), stages)
    assert found is None and "does not hold any more" in fault
    assert earlier_result("name", problems[0], Settings(refresh=True), stages) == (None, "")
