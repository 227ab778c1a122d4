"""The form of the tables, a model as the few lines that matter, and what is asked of each model: that its file does
what the model does in eager, seen from outside."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.fuzz.alike import SETTINGS
from kernelwright.fuzz.product import make
from reported.pending import PENDING

_HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"


@dataclass(frozen=True)
class Case:
    """A model: ``forward(self, arguments)`` with ``body``, and the lists of its ``inputs``.

    number: of the report in PyTorch's issue tracker that it is after. members: the constructor's lines. before: lines
    of the file above the class. also: further lists of inputs that it must do the same with (or refuse alike).
    kernels: whether the emitted file must run kernels of its own on the inputs under ``no_grad``; False where all of it
    may stay with PyTorch. extreme: whether numbers leave the range of their type on the way, so that a result is right,
    too, that keeps what eager loses.
    """

    number: int
    arguments: str
    body: str
    inputs: str
    members: str = ""
    before: str = ""
    also: tuple[str, ...] = ()
    kernels: bool = True
    extreme: bool = False

    def text(self) -> str:
        """The problem file."""
        body = "\n".join(self.body.splitlines())
        last = body.splitlines()[-1]
        if not last.lstrip().startswith(("return", "raise")) and "\n" not in body:
            body = f"return {body}"
        parts = [_HEAD + textwrap.dedent(self.before).strip("\n"), "", "", "class Model(nn.Module):"]
        if self.members:
            parts += ["    def __init__(self):", "        super().__init__()",
                      textwrap.indent(textwrap.dedent(self.members).strip("\n"), " " * 8), ""]
        parts += [f"    def forward(self, {self.arguments}):",
                  textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8), "", "",
                  "def get_inputs():", f"    return [{self.inputs}]", "", "", "def get_init_inputs():", "    return []"]
        return "\n".join(parts) + "\n"


def held(theme: str, cases: Mapping[str, Case]) -> Callable[..., None]:
    """The test of a table's models. A known fault fails its test as long as it is one, and no longer."""

    def marked(name: str) -> object:
        if (why := PENDING.get(f"{theme}: {name}")) is None:
            return name
        return pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=why))

    @pytest.mark.parametrize("name", [marked(name) for name in cases])
    def test_reported(name: str, tmp_path: Path) -> None:
        case = cases[name]
        path = tmp_path / "reported_model.py"
        path.write_text(case.text())
        made = make(path)
        found = made.differences(extreme=case.extreme)
        for further in case.also:
            found += made.differences(settings=SETTINGS[:2], inputs=further)
        assert not found, "\n".join(map(str, found[:8]))
        assert made.runs_kernels() or not case.kernels, made.notes

    return test_reported
