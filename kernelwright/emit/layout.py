"""Lines of emitted files that are not longer than a page is wide: where C, C++, CUDA and Python may be broken.

A line is broken where a space or an opening bracket already separates two tokens, so that no token changes: texts,
characters and comments stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

WIDTH = 120

_TOKEN = re.compile(r"""
    "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*'   # a text or a character
  | //.* | /\*.*?\*/                        # a comment
  | [A-Za-z0-9_.]+ | \s+ | [-+*/%&|^<>=!~?:]+ | .""", re.VERBOSE)
_OPEN, _CLOSE = "([{", ")]}"
#: What a line may end with: what ends a part of it, first of all, or an operator between spaces.
_PARTS = frozenset([",", ";", "{", "&&", "||", "and", "or"])
_OPERATORS = frozenset(["=", "+=", "-=", "*=", "/=", "|=", "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "?", ":",
                        "==", "!=", "<", ">", "<=", ">="])
_QUOTES = ('"', "'")
_INDENT = 4


def broken_c(text: str, width: int = WIDTH) -> str:
    """The text of a C-like language with lines of at most ``width`` characters, where tokens allow it."""
    result: list[str] = []
    directive = False  # whether the line belongs to one of the preprocessor's, which goes on behind a backslash
    for line in text.split("\n"):
        directive = line.lstrip().startswith("#") or (directive and result[-1].endswith("\\"))
        result += [line] if len(line) <= width else list(_broken_line(line, width, directive))
    return "\n".join(result)


def _broken_line(line: str, width: int, directive: bool) -> Iterator[str]:
    indent = line[:len(line) - len(line.lstrip())]
    if directive:
        pieces = _pieces(line.removesuffix("\\").rstrip(), width - 2, 0, any_space=True)
        ends = line.endswith("\\")
        yield from (f"{piece} \\" if ends or n < len(pieces) - 1 else piece for n, piece in enumerate(pieces))
        return
    code, comment = _without_comment(line)
    if comment:
        yield from _comment_lines(comment, indent, width)
    if code.strip():
        yield from _pieces(code.rstrip(), width, 0)


def _without_comment(line: str) -> tuple[str, str]:
    """A line's code, and the comment at its end."""
    for found in _TOKEN.finditer(line):
        if found[0].startswith("//"):
            return line[:found.start()], found[0]
    return line, ""


def _comment_lines(comment: str, indent: str, width: int) -> Iterator[str]:
    line = ""
    for word in comment.removeprefix("//").split():
        if line and len(indent) + 4 + len(line) + len(word) > width:
            yield f"{indent}// {line}"
            line = ""
        line += f" {word}" if line else word
    yield f"{indent}// {line}"


def broken_python(text: str, width: int = WIDTH) -> str:
    """Python's text, broken inside of brackets alone: statements with lines of at most ``width`` characters."""
    return "\n".join(piece for line in text.split("\n") for piece in (
        [line] if len(line) <= width or line.lstrip().startswith(("#", '"""')) else _pieces(line, width, 1)))


def _pieces(line: str, width: int, least: int, *, any_space: bool = False) -> list[str]:
    """A line of code in several. least: the number of brackets around any break."""
    indent = len(line) - len(line.lstrip())
    result: list[str] = []
    around: list[int] = []  # the columns behind the brackets that are open where the line begins
    while len(line) > width:
        found = _break(line, width, around, least, any_space)
        if found is None:
            break
        place, around = found
        result.append(line[:place].rstrip())
        column = around[-1] if around and around[-1] <= width // 2 else indent + _INDENT
        if not around and result[-1].endswith(","):  # of a list that began on a line before
            column = indent
        line = " " * column + line[place:].lstrip()
    return [*result, line]


def _break(line: str, width: int, around: list[int], least: int, any_space: bool) -> tuple[int, list[int]] | None:
    """Where to break a line, and the brackets that are open there: inside of as few as possible, then late."""
    stack, best = list(around), None
    tokens: list[tuple[str, int]] = []
    for found in _TOKEN.finditer(line):  # up to the one that reaches beyond
        tokens.append((found[0], found.end()))
        if found.end() > width:
            break
    start = len(line) - len(line.lstrip())
    for number, (token, end) in enumerate(tokens[:-1]):
        if end > width or (token == "#" and least):  # what follows is a comment of Python's
            break
        if token in _OPEN:
            stack.append(end)
        elif token in _CLOSE and stack:
            stack.pop()
        before, after = (tokens[n][0] if 0 <= n < len(tokens) else "" for n in (number - 1, number + 1))
        between = after.isspace() and before.isspace()
        allowed = (token in ("(", "[") or (after.isspace() and (any_space or token in _PARTS))
                   or (between and token in _OPERATORS)
                   or (token.isspace() and before[-1:] in _QUOTES and after[:1] in _QUOTES))
        if not allowed or len(stack) < least or end <= start + _INDENT:
            continue
        score = (end > start + (width - start) // 2, -len(stack), token in _PARTS, end)
        if best is None or score >= best[0]:
            best = score, end, list(stack)
    return None if best is None else best[1:]
