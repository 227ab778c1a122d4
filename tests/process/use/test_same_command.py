"""The same command again: one process makes the result, others answer with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from machine import knows_the_machine

MODEL = """
import torch
from torch import nn
from helper_of_again import scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = {"some", "names", "in", "no", "order"}
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.tanh(scale(x) * self.weight) + 1.0


def get_inputs():
    return [torch.randn(3, 4)]
"""
#: Whether a machine is busy does not decide here what is kept.
FIRST = """
import torch
import kernelwright
from kernelwright.cache import results

results.unfinished = lambda result: ""
options = {"effort": "quick", "baselines": "none", "budget": 6.0, "target": "c"}
first = kernelwright.optimize("model.py", **options)
again = kernelwright.optimize("model.py", output="again.py", **options)
assert not first.kept_since and again.kept_since, (first.kept_since, again.kept_since)
assert again.source == first.source == open("again.py").read() == open("model_new.py").read()
x = torch.randn(3, 4)
torch.testing.assert_close(again.module(x), first.module(x), rtol=0.0, atol=0.0)
"""
OPTIONS = ["--effort", "quick", "--baselines", "none", "--budget", "6", "--target", "c", "--json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "helper_of_again.py").write_text("def scale(x):\n    return x * 0.5\n")
    os.utime(tmp_path / "helper_of_again.py", (1e9, 1e9))  # before any process began
    (tmp_path / "first.py").write_text(FIRST)
    knows_the_machine(tmp_path / "cache")
    return tmp_path


def ran(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KERNELWRIGHT_CACHE": str(folder / "cache")} | variables
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
                          check=True)


def test_the_same_command_answers_with_its_result(folder):
    """From Python, and on the command line, elsewhere and in another process. A page can be had of it, too. Nothing is
    traced, so that nothing is imported for that: it takes about as long as PyTorch itself."""
    ran(folder, "first.py")
    run = ran(folder, "-X", "importtime", "-m", "kernelwright", "optimize", "model.py", *OPTIONS, "-o", "third.py",
              "--report", "page.html", PYTHONHASHSEED="7")
    result = json.loads(run.stdout)
    assert result["kept_since"] and result["path"] == "third.py"
    assert (folder / "third.py").read_text() == (folder / "model_new.py").read_text()
    lines = run.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    said = "\n".join(line for line in lines if not line.startswith("import time:"))
    assert "torch" in imported and not imported & {"torch._dynamo", "torch._inductor", "sympy", "networkx"}
    assert "the same command has a result" in said and "capture" not in said
    assert "kept result" in (folder / "page.html").read_text()
    listed = json.loads(ran(folder, "-m", "kernelwright", "cache", "--json").stdout)
    assert next(kind["files"] for kind in listed["kinds"] if kind["kind"] == "results") == 1
