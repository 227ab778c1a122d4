"""What stands for code that is not there: bodies of dots, and comments that say "the rest as above"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

_SAID = re.compile(
    r"^[\s#/*]*(?:\.\.\.|…)|\.\.\.\s*\)?$|remaining (?:code|layers|methods)|remains? (?:unchanged|as|the same)"
    r"|(?:rest|remainder) of the (?:code|class|file|model|module|network|layers|forward|kernel|method|implementation)"
    r"|\b(?:same|exactly) as (?:above|before|in the|the original|earlier)|\bas (?:above|before)\b|your (?:code|kernel)"
    r"|\b(?:to be|not (?:yet )?|yet to be) (?:implemented|written|done)|implement(?:ation)? (?:here|goes|of .* here)"
    r"|\bgoes here\b|\bfill (?:this |me )?in\b|\bplaceholder\b|\bomitted\b|\bunchanged\b"
    r"|\bTODO:?\s*(?:implement|write|add|fill|complete|port|the)", re.IGNORECASE)
#: Methods that may have nothing to do.
_MAY_BE_EMPTY = frozenset({"backward", "setup_context", "extra_repr", "reset_parameters"})


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A line that stands for code which is not there. ``certain``: a body without any statement, not only words."""

    line: int
    text: str
    certain: bool


def placeholders(text: str) -> list[Placeholder]:
    """The placeholders of a Python text, in its own code and in the sources of kernels that it has as strings."""
    lines = text.split("\n")
    found = {line: False for line in _said_in_comments(text)}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is not None:
        found |= dict.fromkeys(_said_in_strings(tree), False)
        found |= dict.fromkeys(_empty_bodies(tree), True)
    return [Placeholder(n, lines[n - 1].strip()[:160], certain) for n, certain in sorted(found.items())
            if 0 < n <= len(lines)]


def _said_in_comments(text: str) -> Iterator[int]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and _SAID.search(token.string):
                yield token.start[0]
    except (tokenize.TokenError, SyntaxError, ValueError):  # what is cut off was read as far as it goes
        return


def _said_in_strings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value \
                and re.search(r"#include|__global__|^\s*(?:void|torch::Tensor|at::Tensor)\b", node.value, re.MULTILINE):
            for number, line in enumerate(node.value.split("\n")):
                comment = re.search(r"//(.*)$|/\*(.*?)(?:\*/|$)", line)
                if comment and _SAID.search((comment.group(1) or comment.group(2) or "").strip()):
                    yield node.lineno + number


def _empty_bodies(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name not in _MAY_BE_EMPTY:
            body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
                                                 and isinstance(s.value.value, str))]
            abstract = any("abstract" in ast.unparse(d) or "overload" in ast.unparse(d) for d in node.decorator_list)
            if not abstract and all(map(_does_nothing, body)):
                yield (body or node.body)[0].lineno


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return "NotImplemented" in ast.unparse(statement)
    dots = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass) or dots
