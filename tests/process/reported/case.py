"""The form of the tables: a model as the few lines that matter."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

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
