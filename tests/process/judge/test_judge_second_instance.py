"""Candidates that do something else when they are constructed again in their process: none gets off by that."""

import pytest

from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEM = """
import os
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20))

    def forward(self, x):
        return torch.tanh(x * self.weight)


def get_inputs():
    return [torch.randn(6, 20)]


def get_init_inputs():
    return []
"""
AGAIN = {
    "right": "pass",
    "device-memory": 'raise torch.OutOfMemoryError("CUDA out of memory")',
    "host-memory": "raise MemoryError",
    "raises": 'raise ValueError("once is enough")',
    "ends": "os._exit(0)",
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second")
    (folder / "problem.py").write_text(PROBLEM)
    for name, again in AGAIN.items():
        text = PROBLEM.replace("class Model", "made = []\n\n\nclass ModelNew")
        first = f"        if made:\n            {again}\n        made.append(1)\n"
        text = text.replace("__init__()\n", "__init__()\n" + first)
        (folder / f"{name}.py").write_text(text)
    files = [folder / f"{name}.py" for name in AGAIN]
    result = judge(folder / "problem.py", files, JudgeSettings(target="cpp", effort="quick", time=False), Progress())
    return dict(zip(AGAIN, result.candidates, strict=True))


@pytest.mark.parametrize(("name", "verdict", "words"), [
    ("right", "OK", "Passed"),
    ("device-memory", "CRASH-MEMORY", "as much is free as it had enough with"),
    ("host-memory", "CRASH-MEMORY", "as much is free as it had enough with"),
    ("raises", "OK-BUT", "Only one instance in a process"),
    ("ends", "CRASH-SIGNAL", "ended its process with status 0 while it was imported or constructed")])
def test_a_second_construction(verdicts, name, verdict, words):
    assert verdicts[name].verdict == verdict and words in verdicts[name].reason, verdicts[name].reason
