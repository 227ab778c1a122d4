"""A judge and an optimizer that answer at once, for tests of everything around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from judge_tools import judged, right

from kernelwright.judge.reading.certain import certain
from kernelwright.judge.records import CandidateResult, Finding
from kernelwright.judge.report.rank import rank
from kernelwright.propose.analysis import Analysis, Law, OperatorCost
from kernelwright.propose.endpoint import Reply
from kernelwright.propose.prompt import Message
from kernelwright.propose.session import Tools
from kernelwright.settings import Settings

OURS = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    OURS = True\n    # milliseconds: 2\n"
MODEL = '''import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return [16]
'''


def candidate(milliseconds: float | None = None, fault: str = "", note: str = "") -> str:
    """A candidate's text that :func:`judge` finds right, with this time, or at fault."""
    says = f"# milliseconds: {milliseconds}" if milliseconds is not None else f"# fault: {fault}"
    return (f"import torch\nfrom torch import nn\n\n\nclass ModelNew(nn.Module):\n    {says}\n    NOTE = {note!r}\n"
            f"    KIND = {fault or milliseconds!r}\n\n    def forward(self, x):\n        return x\n")


def answer(text: str) -> str:
    """An answer that has the candidate in a block."""
    return f"Here it is:\n\n```python\n{text}```\n"


class Judge:
    """Verdicts by what a text says; ``runs``: the texts of each run."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []

    def __call__(self, path: Path, files: Sequence[Path], settings: Any, progress: Any) -> dict[str, Any]:
        texts = [file.read_text() for file in files]
        self.runs.append(texts)
        results = [self.result(str(file), text) for file, text in zip(files, texts)]
        return judged(*rank(results), seed=settings.seed, seconds=1.0, problem_profile={
            "outputs": [{"dtype": "torch.float32"}], "roof": {"words": "memory"}}).to_json()

    def result(self, file: str, text: str) -> CandidateResult:
        decided = certain(text)
        if decided is not None:
            return CandidateResult(file, decided[0], decided[1].sentence, decided[1].fix, (decided[1],))
        time = re.search(r"# milliseconds: ([\d.]+)", text)
        if time:
            milliseconds = float(time.group(1))
            found = right(file, milliseconds / 1e3)
            assert found.timing is not None
            ratio = found.timing.speedup
            assert ratio is not None
            speed = 10.0 / milliseconds
            return replace(found, timing=replace(found.timing, speedup=replace(
                ratio, value=speed, low=0.99 * speed, high=1.01 * speed)))
        fault = re.search(r"# fault: ([\w-]+)", text)
        kind = fault.group(1) if fault else "values"
        finding = Finding(kind, f"The output is wrong: {kind}.", "run", f"mend the {kind}", 6,
                          text.split("\n")[5].strip(), {"index": [0, 1], "got": 1.0, "expected": 2.0})
        return CandidateResult(file, "WRONG-NUMERIC", finding.sentence, finding.fix, (finding,))


def optimize(path: Path, settings: Settings, progress: Any) -> None:
    """A file of ours that takes two milliseconds."""
    assert settings.output is not None
    settings.output.write_text(OURS)


def analyse(path: Path, settings: Settings, progress: Any) -> Analysis:
    """An analysis as of a model of two operators."""
    costs = (OperatorCost("linear", "model.py:11", (8, 16), 0.9, 1 << 20, 1 << 22, "arithmetic"),
             OperatorCost("relu", "model.py:11", (8, 16), 0.1, 1 << 10, 1 << 7, "memory"))
    laws = (Law("sum(c x) = c sum(x)", "c does not vary", "reassociates", "model.py:11"),)
    return Analysis("model", "Model", path.read_text(), "a CPU", "C++ with OpenMP", True, ("float32[8, 16]",),
                    ("linear.weight: float32[16, 16]",), costs, laws, (2048, 1024), (4096, 128), 1e-6,
                    "every byte once, at the memory's peak", ("a fused loop",))


class Scripted:
    """Somebody who answers by a function of the call's name, its piece and its messages. ``asked``: all calls."""

    def __init__(self, script: Callable[[str, int, Sequence[Message]], Reply | str]) -> None:
        self.script = script
        self.asked: list[tuple[str, int, list[Message], int]] = []
        self.closed = False

    def __call__(self, *arguments: Any, **named: Any) -> Scripted:
        return self

    def ask(self, name: str, piece: int, messages: Sequence[Message], most_tokens: int, left: Callable[[], float]
            ) -> Reply:
        self.asked.append((name, piece, list(messages), most_tokens))
        reply = self.script(name, piece, messages)
        return Reply(reply, "stop", 100, 50) if isinstance(reply, str) else reply

    def close(self) -> None:
        self.closed = True


def tools(script: Callable[[str, int, Sequence[Message]], Reply | str] | None = None) -> Tools:
    """A judge and an optimizer of one run, and somebody to ask."""
    return Tools(analyse=analyse, endpoint=Scripted(script or (lambda *call: "no")), judge=Judge(), optimize=optimize)
