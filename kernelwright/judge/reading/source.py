"""A candidate's text taken apart: its tree, its lines, and the C++ and CUDA texts in it with their lines."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from kernelwright.judge.reading.ctokens import Function, Launch, Token, functions_of, launches_of, tokens_of
from kernelwright.judge.records import Finding

_STRING_METHODS = {"format", "format_map", "replace", "strip", "lstrip"}
_LOOKS_LIKE_C = re.compile(r"__global__|#include|PYBIND11_MODULE|\b(?:torch|at)::Tensor\b|extern\s+\"C\"|<<<")


@dataclass(frozen=True, slots=True)
class Kernels:
    """One C++ or CUDA text. ``places`` gives, for each of its lines, the line of the candidate's file."""

    text: str
    places: tuple[int, ...]
    complete: bool
    """False where a part of the text is only known when the file runs."""
    tokens: tuple[Token, ...]
    comments: tuple[Token, ...]
    functions: tuple[Function, ...]
    launches: tuple[Launch, ...]

    def place(self, line: int) -> int:
        """Line of the candidate's file for a line of this text."""
        return self.places[min(max(line, 1), len(self.places)) - 1]


@dataclass(frozen=True, slots=True)
class Source:
    """A candidate's file: text, lines, tree, the C++ and CUDA texts, and the problem's tree where that is known."""

    text: str
    lines: tuple[str, ...]
    tree: ast.Module
    kernels: tuple[Kernels, ...]
    problem: ast.Module | None = None
    constants: dict[str, int] = field(default_factory=dict)
    """The whole numbers that the problem's file names at its top level."""

    def hint(self, kind: str, sentence: str, line: int, fix: str = "", **evidence: Any) -> Finding:
        """A finding of source "read" with the text of its line."""
        text = self.lines[line - 1].strip()[:200] if 0 < line <= len(self.lines) else ""
        return Finding(kind, sentence, "read", fix, line, text, evidence)

    def functions(self) -> list[tuple[Kernels, Function]]:
        """All functions of all texts."""
        return [(k, f) for k in self.kernels for f in k.functions]

    def launches(self) -> list[tuple[Kernels, Launch]]:
        """All launches of all texts."""
        return [(k, launch) for k in self.kernels for launch in k.launches]


def take_apart(text: str, problem_text: str | None) -> Source:
    """The source of a candidate. Raises SyntaxError or ValueError where ``text`` is not Python."""
    tree = ast.parse(text)
    lines = tuple(text.split("\n"))
    try:
        problem = ast.parse(problem_text) if problem_text else None
    except (SyntaxError, ValueError):
        problem = None
    return Source(text, lines, tree, tuple(kernel_texts(tree, lines)), problem, whole_numbers(problem))


def kernel_texts(tree: ast.Module, lines: tuple[str, ...]) -> list[Kernels]:
    """The strings that are C++ or CUDA by what they hold, docstrings left out."""
    found: list[Kernels] = []
    inside = docstrings(tree)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop(0)
        text = string_of(node) if id(node) not in inside else None
        if text is None:
            waiting += ast.iter_child_nodes(node)
        elif _LOOKS_LIKE_C.search(text[0]):
            assert isinstance(node, ast.expr)
            tokens = tokens_of(text[0], comments=True)
            plain = tuple(t for t in tokens if t.kind != "comment")
            found.append(Kernels(text[0], _places(node, text[0], lines), text[1], plain,
                                 tuple(t for t in tokens if t.kind == "comment"), tuple(functions_of(plain)),
                                 tuple(launches_of(plain))))
    return found


def string_of(node: ast.AST) -> tuple[str, bool] | None:
    """The text of a string expression, and whether all of it is known; 0 stands for what is not."""
    if isinstance(node, ast.Constant):
        return (node.value, True) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [string_of(value) or ("0", False) for value in node.values]
        return "".join(p[0] for p in parts), all(p[1] for p in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = string_of(node.left), string_of(node.right)
        if left is None and right is None:
            return None
        left, right = left or ("", False), right or ("", False)
        return left[0] + right[0], left[1] and right[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left = string_of(node.left)
        return (left[0], False) if left else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STRING_METHODS:
        inner = string_of(node.func.value)
        return (inner[0], node.func.attr in ("strip", "lstrip")) if inner else None
    return None


def docstrings(tree: ast.AST) -> set[int]:
    """Identities of the constants that are statements of their own."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)}


def _places(node: ast.expr, text: str, lines: tuple[str, ...]) -> tuple[int, ...]:
    first, last = node.lineno, node.end_lineno or node.lineno
    places, expected = [], first
    for part in text.split("\n"):
        words = part.strip()
        if words and not (expected <= last and words in lines[expected - 1]):
            expected = next((n for n in range(first, last + 1) if words in lines[n - 1]), min(expected, last))
        places.append(min(expected, last))
        expected += 1
    return tuple(places)


def fold(node: ast.AST | None, names: dict[str, int]) -> int | None:
    """The whole number that an expression of constants and known names is, or None."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = fold(node.operand, names)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        left, right = fold(node.left, names), fold(node.right, names)
        if left is None or right is None:
            return None
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return left + right if isinstance(node.op, ast.Add) else left - right if isinstance(
                node.op, ast.Sub) else left * right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        if isinstance(node.op, ast.Pow) and 0 <= right < 64 and abs(left) < 1024:
            return int(left**right)
        if isinstance(node.op, ast.LShift) and 0 <= right < 64:
            return left << right
    return None


def whole_numbers(tree: ast.Module | None) -> dict[str, int]:
    """Whole numbers that a file's top level gives names to."""
    names: dict[str, int] = {}
    for node in tree.body if tree else []:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) and isinstance(target, ast.Tuple) else [
                node.value] * len(targets)
            for name, value in zip(targets, values, strict=False):
                number = fold(value, names)
                if isinstance(name, ast.Name) and number is not None:
                    names[name.id] = number
    return names


def number_of(token: Token) -> int | None:
    """The value of a whole number in C++ text."""
    digits = token.text.replace("'", "").rstrip("uUlL")
    try:
        return int(digits, 0) if token.kind == "number" else None
    except ValueError:
        return None
