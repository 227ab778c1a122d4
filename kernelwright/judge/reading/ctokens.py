"""Tokens of C++ and CUDA text, its functions and its kernel launches. Needs the standard library alone.

Not a parser: it knows comments, strings, directives and brackets, which is enough to see what a text says without
being misled by what stands in a comment or a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))"
    r"|(?P<raw>\b(?:u8|[uUL])?R\"(?P<fence>[^\s()\\]{0,16})\(.*?(?:\)(?P=fence)\"|\Z))"
    r"|(?P<string>\"(?:\\.|[^\"\\\n])*\"?)"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|[\w.]|'\w)*)"
    r"|(?P<character>'(?:\\.|[^'\\\n])+'?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator><<<|>>>|<<=|>>=|\.\.\.|->\*?|::|\+\+|--|<<|&&|\|\||[-+*/%&|^!=<>]=|[^\s\w])",
    re.DOTALL)
_DIRECTIVE = re.compile(r"#(?:\\\r?\n|/\*.*?\*/|(?!//|/\*)[^\n])*", re.DOTALL)
_CLOSES = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token: ``kind`` is comment, string, number, character, name, operator or directive; ``start`` and ``end``
    are offsets into the text, ``line`` counts from 1."""

    kind: str
    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function with a body. ``parameters`` and ``body`` (between the braces) are tokens without comments;
    ``specifiers`` the words before its name (``__global__``, ``static``, ``template``, the result's type)."""

    name: str
    line: int
    specifiers: tuple[str, ...]
    parameters: tuple[Token, ...]
    body: tuple[Token, ...]
    start: int
    end: int

    @property
    def is_kernel(self) -> bool:
        """Whether it is launched from the host."""
        return "__global__" in self.specifiers

    @property
    def is_device(self) -> bool:
        """Whether it runs on the device."""
        return self.is_kernel or "__device__" in self.specifiers


@dataclass(frozen=True, slots=True)
class Launch:
    """``kernel<<<grid, block, shared, stream>>>(arguments)``. ``kernel`` is the text before it with its template
    arguments, ``name`` the kernel's plain name; each of ``configuration`` and ``arguments`` is a run of tokens."""

    name: str
    kernel: str
    line: int
    configuration: tuple[tuple[Token, ...], ...]
    arguments: tuple[tuple[Token, ...], ...]
    start: int
    end: int


def tokens_of(text: str, *, comments: bool = False) -> list[Token]:
    """The tokens of a text, those of directives as one each; comments only where asked for."""
    found: list[Token] = []
    position, line, fresh = 0, 1, True  # fresh: only blanks stand before this place on its line
    while position < len(text):
        character = text[position]
        if character == "\n":
            line, fresh, position = line + 1, True, position + 1
            continue
        if character.isspace():
            position += 1
            continue
        match = _DIRECTIVE.match(text, position) if character == "#" and fresh else _TOKEN.match(text, position)
        if match is None:
            position += 1
            continue
        kind = "directive" if match.re is _DIRECTIVE else str(match.lastgroup)
        kind = "string" if kind in ("raw", "fence") else kind
        if kind != "comment" or comments:
            found.append(Token(kind, match.group(), position, match.end(), line))
        fresh = fresh and kind == "comment" and "\n" not in match.group()
        line += match.group().count("\n")
        position = match.end()
    return found


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``; the last index where none does."""
    depth, kinds = 0, _CLOSES[tokens[opening].text]
    for index in range(opening, len(tokens)):
        if tokens[index].kind == "operator":
            depth += (tokens[index].text == tokens[opening].text) - (tokens[index].text == kinds)
            if depth == 0:
                return index
    return len(tokens) - 1


def split_commas(tokens: Sequence[Token]) -> tuple[tuple[Token, ...], ...]:
    """Runs of tokens between the commas that stand outside of all brackets; template brackets where they look so."""
    parts: list[list[Token]] = [[]]
    depth = angle = 0
    for index, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        elif token.text == "<" and index and tokens[index - 1].kind == "name" and _closes_angle(tokens, index):
            angle += 1
        elif token.text == ">" and angle:
            angle -= 1
        elif token.text == "," and depth == 0 and angle == 0:
            parts.append([])
            continue
        parts[-1].append(token)
    return tuple(tuple(part) for part in parts) if any(parts) else ()


def _closes_angle(tokens: Sequence[Token], opening: int) -> bool:
    """Whether a ``<`` opens template arguments: its ``>`` comes before anything that those do not contain."""
    depth = 0
    for token in tokens[opening:]:
        if token.text in ("<", "<<"):
            depth += len(token.text)
        elif token.text in (">", ">>>"):
            depth -= len(token.text)
            if depth <= 0:
                return True
        elif token.text in (";", "{", "&&", "||", "=", "+", "-", "<=", ">="):
            return False
    return False


def functions_of(tokens: Sequence[Token]) -> list[Function]:
    """The functions with bodies at namespace level (blocks of ``namespace`` and ``extern "C"`` are looked into)."""
    found: list[Function] = []
    begin = index = 0  # begin: where the present declaration starts
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "directive" or token.text in (";", "}"):
            begin = index + 1
        elif token.text == "(":
            index = closing(tokens, index)
        elif token.text == "{":
            words = [t.text for t in tokens[begin:index]]
            if "namespace" in words or (words[:1] == ["extern"] and len(words) == 2):
                begin = index + 1
            else:
                end = closing(tokens, index)
                function = _function(tokens, begin, index, end)
                if function:
                    found.append(function)
                index = end
                if function:
                    begin = index + 1
        index += 1
    return found


def _function(tokens: Sequence[Token], begin: int, opening: int, end: int) -> Function | None:
    index = begin
    while index < opening:
        if tokens[index].text == "(":
            close = closing(tokens, index)
            name = tokens[index - 1] if index > begin else None
            if name and name.kind == "name" and name.text not in ("__launch_bounds__", "__attribute__", "__align__",
                                                                  "alignas", "decltype", "noexcept"):
                words = tuple(t.text for t in tokens[begin:index - 1])
                return Function(name.text, name.line, words, tuple(tokens[index + 1:close]),
                                tuple(tokens[opening + 1:end]), tokens[begin].start, tokens[end].end)
            index = close
        index += 1
    return None


def launches_of(tokens: Sequence[Token]) -> Iterator[Launch]:
    """Every launch in the text, in order."""
    for index, token in enumerate(tokens):
        if token.text != "<<<" or index == 0:
            continue
        first = _kernel_start(tokens, index)
        close = _configuration_end(tokens, index)
        if first is None or close is None or close + 1 >= len(tokens) or tokens[close + 1].text != "(":
            continue
        end = closing(tokens, close + 1)
        names = [t for t in tokens[first:index] if t.kind == "name"]
        plain = next((i for i in range(first, index) if tokens[i].text == "<"), index)
        name = next((t.text for t in reversed(tokens[first:plain]) if t.kind == "name"), "")
        if names:
            yield Launch(name, _source(tokens[first:index]), token.line,
                         split_commas(tokens[index + 1:close]), split_commas(tokens[close + 2:end]),
                         tokens[first].start, tokens[end].end)


def _source(tokens: Sequence[Token]) -> str:
    text = ""
    for before, token in zip([None, *tokens[:-1]], tokens, strict=True):
        words = before is not None and before.kind in ("name", "number") and token.kind in ("name", "number")
        text += (" " if words else "") + token.text
    return text


def _kernel_start(tokens: Sequence[Token], launch: int) -> int | None:
    """Index of the first token of the expression before ``<<<``: a qualified name with template arguments."""
    index = launch - 1
    if tokens[index].text in (">", ">>>"):
        depth = 0
        while index >= 0:
            depth += tokens[index].text.count(">") if tokens[index].text in (">", ">>>") else 0
            depth -= tokens[index].text.count("<") if tokens[index].text in ("<", "<<") else 0
            if depth == 0 or tokens[index].text in (";", "{"):
                break
            index -= 1
        index -= 1
    if index < 0 or tokens[index].kind != "name":
        return None
    while index >= 2 and tokens[index - 1].text == "::" and tokens[index - 2].kind == "name":
        index -= 2
    return index


def _configuration_end(tokens: Sequence[Token], launch: int) -> int | None:
    depth = 0
    for index in range(launch + 1, len(tokens)):
        text = tokens[index].text
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        if text == ">>>" and depth == 0:
            return index
        if depth < 0 or text == ";":
            return None
    return None
