"""The tutorials are run as they stand, in small sizes, and show what their pages say."""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from clocks import CLOCKS_DROP_NOTHING
from forks import Forked
from machine import knows_the_machine
from places import ROOT

import kernelwright
from kernelwright.algebra import engine
from kernelwright.capture.converters.table import CONVERTERS
from kernelwright.codegen.generate import TARGETS
from kernelwright.ir.registry import OPERATORS
from kernelwright.ir.scalar import FUNCTIONS, KERNEL_FUNCTIONS
from kernelwright.judge.settings import JudgeSettings

TUTORIALS = ROOT / "examples" / "tutorials"
COMPARE = ROOT / "examples" / "ci" / "compare.py"


def stands_in(page: str, printed: str) -> None:
    """Assert that a page shows what was printed, but for numbers and the words of a certificate."""
    def shape(text: str) -> list[str]:
        return [re.sub(r"\d[\d.]*(e[+-]\d+)?", "#", line).strip() for line in text.splitlines()]

    shown = set(shape((ROOT / "docs" / "tutorials" / page).read_text(encoding="utf-8")))
    assert [line for line in shape(printed) if line and line not in shown and not line.startswith("Passed")] == []


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    """A folder with the tutorial's model in small, its emitted file, and the document of that run."""
    folder = tmp_path_factory.mktemp("tutorial")
    shutil.copy(TUTORIALS / "gated_pool.py", folder)
    program = f"{CLOCKS_DROP_NOTHING}from kernelwright.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program, "optimize", "gated_pool.py", "--tiny", "--baselines", "none",
                           "--effort", "quick", "--target", "cpp", "--json"], cwd=folder, capture_output=True,
                          text=True,
                          env={**os.environ, "KERNELWRIGHT_CACHE": str(knows_the_machine(folder / "cache"))})
    assert done.returncode == 0, done.stderr
    (folder / "result.json").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_your_own_model(emitted):
    document = json.loads((emitted / "result.json").read_text())
    assert document["modes"][0]["replaced"] == document["modes"][0]["operators"] == 7
    assert (emitted / "gated_pool_new.py").exists()


def test_deployed_without_a_compiler(emitted):
    """A compiled library is found in the cache folder where there is no compiler at all."""
    script = ("import torch, gated_pool_new; model = gated_pool_new.ModelNew(8)\n"
              "with torch.no_grad(): model(torch.randn(2, 8, 12, 12))\nprint(model.why())")

    def run(cache: Path) -> tuple[str, str]:
        return Forked(script, folder=emitted, environment={
            "PATH": "", "CXX": "none", "HOME": str(emitted), "KERNELWRIGHT_CACHE": str(cache)}).communicate()

    out, err = run(emitted / "cache")
    assert out.strip() == "{}", out + err
    assert "this machine" in run(emitted / "empty")[0]  # else the first run would show nothing


@pytest.mark.slow
def test_judge(emitted):
    """The candidates' verdicts; on random inputs alone the second one is right to the last bit."""
    model, wrong = (runpy.run_path(str(TUTORIALS / name))[kind](8) for name, kind in
                    (("gated_pool.py", "GatedPool"), ("candidates/no_affine.py", "ModelNew")))
    wrong.load_state_dict(model.state_dict())
    x = torch.randn(2, 8, 12, 12)
    assert torch.equal(model(x), wrong(x))
    judged = kernelwright.judge_files(TUTORIALS / "gated_pool.py", [TUTORIALS / "candidates"],
                                      JudgeSettings(effort="quick", time=False, tiny=True, seed=7, target="cpp"))
    assert {Path(c.file).name: c.verdict for c in judged.candidates} == {
        "half.py": "WRONG-PRECISION", "no_affine.py": "WRONG-PARAMETERS", "one_pass.py": "OK"}


@pytest.mark.slow
def test_an_operator(monkeypatch, capsys):
    for table in (CONVERTERS, OPERATORS, FUNCTIONS, KERNEL_FUNCTIONS):
        for name in ("entr", "special_entr.default"):
            assert name not in table
            monkeypatch.setitem(table, name, None)  # so that it is taken out again
            monkeypatch.delitem(table, name)
    monkeypatch.syspath_prepend(TUTORIALS)  # a model's text is looked for in its module's file
    new = importlib.import_module("write_an_operator").main()
    printed = capsys.readouterr().out
    stands_in("operator.md", printed)
    before, _, after = printed.partition("after:")
    assert "special_entr stays with PyTorch" in before and "stays with PyTorch" not in after
    x = torch.randn(64, 1000)
    x[0, :3] = torch.tensor([float("nan"), float("inf"), 0.0])
    x[1, 0] = float("inf")
    with torch.no_grad():
        torch.testing.assert_close(new(x), torch.special.entr(x.abs() * 0.5).mean(-1), equal_nan=True)
    assert new.why() == {}


def test_a_rule(monkeypatch, capsys):
    monkeypatch.setattr(engine, "_BY_ROOT", dict(engine._BY_ROOT))
    names = runpy.run_path(str(TUTORIALS / "write_a_rule.py"))["main"]()
    assert names.count("even function of a negation") == 2
    stands_in("rule.md", capsys.readouterr().out)


def test_a_target(monkeypatch, capsys):
    assert "portable" not in TARGETS
    monkeypatch.setitem(TARGETS, "portable", None)
    assert runpy.run_path(str(TUTORIALS / "write_a_target.py"))["main"]() < 1e-6
    stands_in("target.md", capsys.readouterr().out)


# ---- the template for CI ---------------------------------------------------------------------------


def quiet(document: dict) -> dict:
    """The same document with times that hold, whatever the machine was doing."""
    for mode in document["modes"]:
        for entry in mode["timing"]["entries"].values():
            entry["busy"] = False
    return document


def changed(document: dict, factor: float = 1.0, error: float = 1.0) -> dict:
    """A document with other times and errors."""
    document = copy.deepcopy(document)
    for mode in document["modes"]:
        mode["certificate"]["candidate_error"] = float(mode["certificate"]["candidate_error"]) * error
        for entry in mode["timing"]["entries"].values():
            entry["median"] *= factor
            entry["interval"] = [bound * factor for bound in entry["interval"]]
    return document


@pytest.fixture
def compared(tmp_path):
    """A function that runs the script on two documents, or texts: its exit status and what it printed."""

    def run(before: dict | str, after: dict | str, *options: str) -> tuple[int, str]:
        for name, document in (("before.json", before), ("after.json", after)):
            (tmp_path / name).write_text(document if isinstance(document, str) else json.dumps(document))
        done = subprocess.run([sys.executable, str(COMPARE), "before.json", "after.json", *options], cwd=tmp_path,
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def test_ci_compares(emitted, compared):
    document = quiet(json.loads((emitted / "result.json").read_text()))
    assert compared(document, document)[0] == 0
    slower = changed(document, factor=1000.0)
    assert compared(document, slower)[0] == 1 and "FAIL" in compared(document, slower)[1]
    assert compared(slower, document)[0] == 0
    assert compared(document, slower, "--slower", "1e6")[0] == 0
    less_accurate = changed(document, error=1e3)
    assert compared(document, less_accurate)[0] == 1 and "relative error" in compared(document, less_accurate)[1]
    assert compared(document, less_accurate, "--error", "1e6")[0] == 0


def test_ci_says_what_it_cannot_tell(emitted, compared):
    document = quiet(json.loads((emitted / "result.json").read_text()))
    busy = changed(document, factor=1000.0)
    for mode in busy["modes"]:
        for entry in mode["timing"]["entries"].values():
            entry["busy"] = True
    status, text = compared(document, busy)
    assert status == 0 and "busy" in text
    untimed = copy.deepcopy(document)
    for mode in untimed["modes"]:
        mode["timing"] = None
    assert compared(document, untimed)[0] == 0
    assert compared(document, {"schema": 1, "error": {"what": "There is no file model.py."}})[0] == 2
    assert compared(document, "")[0] == 2
