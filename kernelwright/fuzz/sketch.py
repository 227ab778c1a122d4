"""A random model as text in parts, so that it can be taken apart again: a problem file in KernelBench form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_NAME = re.compile(r"\b(?:[vx]\d+|self\.\w+)\b")
_WRITES = re.compile(r"\w_\(|inplace=True")


def names_in(text: str) -> set[str]:
    """The values (``x1``, ``v2``) and members (``self.m1``) that a text speaks of."""
    return set(_NAME.findall(text))


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of the forward: ``results = text``, or ``text`` alone where it is there for its effect."""

    results: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.results)} = {self.text}" if self.results else self.text

    @property
    def writes(self) -> bool:
        """Whether the line changes a tensor in place."""
        return not self.results or _WRITES.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class Sketch:
    """A model. ``members`` are (``self.m1``, its definition), ``inputs`` (name, the text that makes it).

    ``returns``: the names returned; ``form``: how ("one", "tuple", "list", "dict" or "nested").
    """

    title: str
    inputs: tuple[tuple[str, str], ...]
    members: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    returns: tuple[str, ...]
    form: str

    def text(self) -> str:
        """The problem file."""
        lines = [f'"""{self.title}"""', "", "import torch", "import torch.nn as nn", "import torch.nn.functional as F",
                 "", "", "class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        for name, definition in self.members:
            own = name.removeprefix("self.")
            lines.append(f'        self.register_buffer("{own}", {definition.removeprefix("buffer ")})'
                         if definition.startswith("buffer ") else f"        {name} = {definition}")
        lines += ["", f"    def forward({', '.join(['self', *(name for name, _ in self.inputs)])}):"]
        lines += [f"        {statement}" for statement in self.statements]
        lines += [f"        return {self._returned()}", "", "", "def get_inputs():", "    return ["]
        lines += [f"        {text}," for _, text in self.inputs]
        return "\n".join([*lines, "    ]", "", "", "def get_init_inputs():", "    return []", ""])

    def _returned(self) -> str:
        if self.form == "dict":
            return "{" + ", ".join(f'"{name}": {name}' for name in self.returns) + "}"
        listed = ", ".join(self.returns)
        if self.form == "nested":
            return f"({self.returns[0]}, [{', '.join(self.returns[1:])}])"
        if self.form == "one" and len(self.returns) == 1:
            return listed
        return f"[{listed}]" if self.form == "list" else f"({listed}{',' if len(self.returns) == 1 else ''})"

    def pruned(self, keep_unused: Iterable[str] = ()) -> Sketch:
        """Without the statements, inputs and members that nothing returned or changed in place depends on."""
        needed = set(self.returns) | set(keep_unused)
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if needed & set(statement.results) or statement.writes:
                kept.append(statement)
                needed |= names_in(statement.text)
        members: list[tuple[str, str]] = []
        for name, text in reversed(self.members):  # a tied parameter speaks of an earlier member
            if name in needed:
                members.append((name, text))
                needed |= names_in(text)
        return replace(self, statements=tuple(reversed(kept)), members=tuple(reversed(members)),
                       inputs=tuple((name, text) for name, text in self.inputs if name in needed))
