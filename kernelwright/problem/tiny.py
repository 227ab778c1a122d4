"""Tiny problems: a file says which of its constants may be replaced, so that the whole way takes seconds anywhere."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelwright.errors import TinyUnusable, place

NAME = "TINY"


def apply_tiny(module: ModuleType, text: str, path: Path) -> str:
    """Give the globals of a problem file the values of its dictionary ``TINY`` (name: value), in place.

    The values are literals: numbers, strings, None, and lists, tuples and dictionaries of these. The result is
    the text with the same assignments at its end, so that what is emitted from it computes the same; the lines before
    keep their numbers. Raises TinyUnusable (KW119) where there is no such dictionary or it names no global.
    """
    values: Any = vars(module).get(NAME)
    if not isinstance(values, dict) or not values:
        raise TinyUnusable(where=place(path), path=path, found="it defines no dictionary TINY" if values is None
                           else f"it is {type(values).__name__} {values!r}"[:200])
    lines = []
    for name, value in values.items():
        if not isinstance(name, str) or name not in vars(module):
            raise TinyUnusable(where=place(path), path=path, found=f"it names {name!r}, which is no global of the file")
        if not _literal(value):
            raise TinyUnusable(where=place(path), path=path, found=f"the value of {name} is no literal")
        lines.append(f"{name} = {value!r}\n")
    for name, value in values.items():
        setattr(module, name, value)
    return text.rstrip("\n") + "\n" + "".join(lines)


def _literal(value: Any) -> bool:
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        return False
