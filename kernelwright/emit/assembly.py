"""The runtime of one file: of the whole runtime's text what this file uses.

The runtime is written with conditions (names in capital letters, such as ``CUDA``) whose values are known when a
file is written. :func:`folded` keeps the branch that holds, and :func:`used` keeps the functions, classes, values and
imports that the file's own text refers to, directly or through others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache


def folded(text: str, conditions: Mapping[str, bool]) -> str:
    """The text with the branch that holds in place of each ``if`` whose test is made of ``conditions`` alone.

    Such a test may use ``and``, ``or`` and ``not``; such an ``if`` has no ``elif``.
    """
    return _folded(text, tuple(sorted(conditions.items())))


# A run writes its file several times, with other kernels and mostly the same runtime; a process may make many runs.
_KEPT = 64
# The runtime has a hundred pieces, and these some forms each.
_KEPT_PIECES = 1024


@lru_cache(4)
def _tree(text: str) -> ast.Module:
    """A text that is folded by many conditions, read; nobody changes it."""
    return ast.parse(text)


@lru_cache(_KEPT)
def _folded(text: str, known: tuple[tuple[str, bool], ...]) -> str:
    given = text.split("\n")
    lines: list[str | None] = [*given]
    emptied = []
    for node, value in _folds(_tree(text), dict(known)):
        branch = node.body if value else node.orelse
        end = node.end_lineno or node.lineno
        kept = range(0)
        if branch:
            kept = range(node.lineno if value else _else_line(given, node), branch[-1].end_lineno or end)
            more = branch[0].col_offset - node.col_offset
            for at in kept:
                line = lines[at] or ""
                lines[at] = line[more:] if not line[:more].strip() else line
        else:
            emptied.append((node.lineno - 1, end))
        for at in {*range(node.lineno - 1, end)} - {*kept}:
            lines[at] = None
    for start, end in emptied:  # of two blank lines around what went, such as those of a method, one goes, too
        before = next((line for line in reversed(lines[:start]) if line is not None), None)
        after = next((at for at in range(end, len(lines)) if lines[at] is not None), None)
        if before == "" and after is not None and lines[after] == "":
            lines[after] = None
    return "\n".join(line for line in lines if line is not None)


def _folds(node: ast.AST, conditions: Mapping[str, bool]) -> Iterator[tuple[ast.If, bool]]:
    """The statements that have a branch that holds, with the condition's value; each before those in its branch."""
    if isinstance(node, ast.If) and (value := _value(node.test, conditions)) is not None:
        yield node, value
        for child in node.body if value else node.orelse:
            yield from _folds(child, conditions)
    elif isinstance(node, (ast.stmt, ast.Module, ast.excepthandler)):
        for child in ast.iter_child_nodes(node):
            yield from _folds(child, conditions)


def _else_line(lines: list[str], node: ast.If) -> int:
    """The number of lines up to and with that of an ``else``."""
    line = node.orelse[0].lineno - 1
    while lines[line - 1] != " " * node.col_offset + "else:":
        line -= 1
    return line


def _value(test: ast.expr, conditions: Mapping[str, bool]) -> bool | None:
    """The value of a test of conditions; None where something else stands in it."""
    if isinstance(test, ast.Name):
        return conditions.get(test.id)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _value(test.operand, conditions)
        return None if value is None else not value
    if isinstance(test, ast.BoolOp):
        values = [_value(part, conditions) for part in test.values]
        if None in values:
            return None
        return all(values) if isinstance(test.op, ast.And) else any(values)
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """A statement of a module with the comments above it, the names that it binds, and all names in it."""

    text: str
    binds: frozenset[str]
    names: frozenset[str]
    is_block: bool


@lru_cache(_KEPT)
def _parts(text: str) -> list[_Part]:
    """The statements of a module. Most stand apart by two blank lines: each of these pieces is read once, in however
    many texts it stands."""
    try:
        return [part for piece in text.split("\n\n\n") for part in _parts_of(piece)]
    except SyntaxError:  # the blank lines are within a statement
        return _parts_of(text)


@lru_cache(_KEPT_PIECES)
def _parts_of(text: str) -> list[_Part]:
    lines = text.split("\n")
    parts, end = [], 0
    for node in ast.parse(text).body:
        start = node.lineno - 1
        while start > end and lines[start - 1].startswith("#"):
            start -= 1
        names = names_in(node)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            binds = frozenset((node.name,))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            binds = frozenset(alias.asname or alias.name.split(".")[0] for alias in node.names)
        else:
            binds = frozenset(_bound(node))
        end = node.end_lineno or node.lineno
        parts.append(_Part("\n".join(lines[start:end]), binds, names,
                           isinstance(node, (ast.FunctionDef, ast.ClassDef))))
    return parts


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds. Those of a comprehension are its own."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif not isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def names_in(node: ast.AST) -> frozenset[str]:
    """All names that stand in a piece of Python."""
    return frozenset(x.id for x in ast.walk(node) if isinstance(x, ast.Name))


def used(text: str, names: Iterable[str]) -> str:
    """The statements of a module's text that bind one of ``names``, and what these refer to, in the order of the text,
    apart as functions and statements are."""
    parts = _parts(text)
    wanted = set(names)
    kept: set[int] = set()
    grown = True
    while grown:
        grown = False
        for number, part in enumerate(parts):
            if number not in kept and part.binds & wanted:
                kept.add(number)
                wanted |= part.names | part.binds
                grown = True
    result = ""
    before: _Part | None = None
    for number in sorted(kept):
        part = parts[number]
        if before is not None:
            result += "\n\n\n" if before.is_block or part.is_block else "\n"
        result += part.text
        before = part
    return result
