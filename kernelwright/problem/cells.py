"""The text that was typed into a notebook or a console: no file has it, and ``linecache`` keeps it for tracebacks."""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells that were run so far, one below the other; ``name`` is that of the cell with the class."""

    name: str
    text: str


def cells_of(kind: type) -> Cells | None:
    """The cells around a class that was typed; None for one that stands in a file, or whose text nobody kept.

    Cells are known by names that differ in numbers (``<ipython-input-3-5f2a>``, ``/tmp/ipykernel_81/1412.py``). Those
    that are no Python, as they failed to run, are left out.
    """
    codes = [value.__code__ for value in vars(kind).values() if isinstance(value, FunctionType)
             and value.__qualname__.startswith(f"{kind.__qualname__}.")]
    name = next((code.co_filename for code in codes if _is_typed(code.co_filename)), None)
    if name is None:
        return None
    start = _start(name)
    texts = [text for other in list(linecache.cache) if _start(other) == start and _is_typed(other)
             and _parses(text := "".join(linecache.getlines(other)))]
    return Cells(name, "\n".join(text if text.endswith("\n") else f"{text}\n" for text in texts))


def _start(name: str) -> str:
    """What the names of all cells begin with."""
    return re.split(r"\d", name, maxsplit=1)[0]


def _is_typed(name: str) -> bool:
    """Whether a name of code stands for text that was typed, which is kept."""
    return bool(re.search(r"\d", name)) and not Path(name).exists() and bool(linecache.getlines(name))


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
