"""A random model as text in parts, so that it can be taken apart again: a problem file in KernelBench form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_NAME = re.compile(r"\b(?:[vxG]\d+|self\.\w+)\b")
_WRITES = re.compile(r"\w_\(|inplace=True")


_DEFINED = re.compile(r"(?:def )?(\w+)")
#: Classes that outputs may be of, by form.
_CLASSES = {"named": "from typing import NamedTuple\n\n\nclass Returned(NamedTuple):{fields}",
            "data": "from dataclasses import dataclass\n\n\n@dataclass\nclass Returned:{fields}",
            "ordered": "from collections import OrderedDict"}


def names_in(text: str) -> set[str]:
    """The values (``x1``, ``v2``), members (``self.m1``) and globals (``G1``) that a text speaks of."""
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

    ``returns``: the names returned; ``form``: how ("one", "tuple", "list", "dict", "nested", "named", "data" or
    "ordered"). ``above``: definitions above the class. ``beside``: further texts that are returned. ``renamed``: names
    with those that stand for them in the file.
    """

    title: str
    inputs: tuple[tuple[str, str], ...]
    members: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    returns: tuple[str, ...]
    form: str
    above: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The problem file."""
        fields = [*self.returns, *(f"y{i}" for i, _ in enumerate(self.beside))]
        above = [*self.above, *_CLASSES.get(self.form, "").format(fields="".join(f"\n    {n}: object" for n in fields)
                                                                  ).split("\n\n\n")]
        lines = [f'"""{self.title}"""', "", "import torch", "import torch.nn as nn", "import torch.nn.functional as F",
                 *(line for text in above if text for line in ("", "", text)),
                 "", "", "class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        for name, definition in self.members:
            own = name.removeprefix("self.")
            lines.append(f'        self.register_buffer("{own}", {definition.removeprefix("buffer ")})'
                         if definition.startswith("buffer ") else f"        {name} = {definition}")
        lines += ["", f"    def forward({', '.join(['self', *(name for name, _ in self.inputs)])}):"]
        lines += [f"        {statement}" for statement in self.statements]
        lines += [f"        return {self._returned()}", "", "", "def get_inputs():", "    return ["]
        lines += [f"        {text}," for _, text in self.inputs]
        text = "\n".join([*lines, "    ]", "", "", "def get_init_inputs():", "    return []", ""])
        for name, other in self.renamed:
            text = re.sub(rf"\b{name}\b", other, text)
        return text

    def _returned(self) -> str:
        names = [*self.returns, *(f"y{i}" for i, _ in enumerate(self.beside))]
        texts = [*self.returns, *self.beside]
        listed = ", ".join(texts)
        if self.form in ("dict", "ordered"):
            pairs = "{" + ", ".join(f'"{name}": {text}' for name, text in zip(names, texts, strict=True)) + "}"
            return pairs if self.form == "dict" else f"OrderedDict({pairs})"
        if self.form in _CLASSES:
            return f"Returned({listed})"
        if self.form == "nested":
            return f"({texts[0]}, [{', '.join(texts[1:])}])"
        if self.form == "one" and len(texts) == 1:
            return listed
        return f"[{listed}]" if self.form == "list" else f"({listed}{',' if len(texts) == 1 else ''})"

    def pruned(self, keep_unused: Iterable[str] = ()) -> Sketch:
        """Without the statements, inputs and members that nothing returned or changed in place depends on."""
        needed = set(self.returns) | set(keep_unused) | {n for text in self.beside for n in names_in(text)}
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
        spoken = " ".join(s.text for s in kept)
        above = tuple(t for t in self.above if (defined := _DEFINED.match(t)) is not None
                      and re.search(rf"\b{defined[1]}\b", spoken))
        return replace(self, statements=tuple(reversed(kept)), members=tuple(reversed(members)), above=above,
                       inputs=tuple((name, text) for name, text in self.inputs if name in needed))
