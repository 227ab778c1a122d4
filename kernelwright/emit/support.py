"""The support text of one file: of the functions that kernels of a target share those that this file's kernels call.

A text is taken apart into what stands at its top level: functions, types, tables and macros, each with the comments
above it, and directives. What has names is kept where kernels refer to one of them, directly or through others; where
no name is seen all of it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//.*')
_CONDITION = re.compile(r"#\s*(if|ifdef|ifndef|else|elif|endif)\b")
_MACRO = re.compile(r"#\s*define\s+(\w+)")
# All names that kernels share begin so.
_SHARED = re.compile(r"\b(?:kw|KW)_\w+")
_FUNCTION = re.compile(rf"({_SHARED.pattern})\s*\(")
_WORD = re.compile(r"\b[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class _Item:
    """Lines of a text's top level. names: of what they define, none where they define nothing that has one. condition:
    the directive that begins, splits or ends a conditional part."""

    text: str
    names: frozenset[str]
    condition: str
    words: frozenset[str]


def used_support(support: str, kernels: str) -> str:
    """The support text without what neither the kernels nor the rest of it refers to."""
    items = list(_items(support))
    kept = [not item.names for item in items]
    wanted = {*_words(kernels), *(word for item in items if not item.names for word in item.words)}
    grown = True
    while grown:
        grown = False
        for number, item in enumerate(items):
            if not kept[number] and item.names & wanted:
                kept[number] = grown = True
                wanted |= item.words
    left = [item for item, is_kept in zip(items, kept, strict=True) if is_kept]
    while len(fewer := _without_empty(left)) < len(left):
        left = fewer
    return re.sub(r"\n{3,}", "\n\n", "\n".join(item.text for item in left)).strip("\n")


def _without_empty(items: list[_Item]) -> list[_Item]:
    """The items without one conditional part in which nothing stands."""
    for number, item in enumerate(items):
        end = number + 1
        if item.condition.startswith("if"):
            while end < len(items) and items[end].condition in ("else", "elif"):
                end += 1
            if end < len(items) and items[end].condition == "endif":
                return [*items[:number], *items[end + 1:]]
    return items


def _code(line: str) -> str:
    """A line without its comment, and with nothing in its literals."""
    return _COMMENT.sub(lambda found: '""' if found[0].startswith('"') else "", line).strip()


def _words(text: str) -> frozenset[str]:
    """All words of a text but for those of comments and literals."""
    return frozenset(word for line in text.split("\n") for word in _WORD.findall(_code(line)))


def _items(text: str) -> Iterator[_Item]:
    lines: list[str] = []
    depth, begun, is_directive = 0, False, False
    for line in text.split("\n"):
        code = _code(line)
        lines.append(line)
        if not begun:
            if not code:
                continue  # a comment, or nothing: it belongs to what follows
            begun, is_directive = True, code.startswith("#")
        if is_directive:
            ends = not line.endswith("\\")
        else:
            depth += code.count("{") - code.count("}")
            ends = depth == 0 and code.endswith((";", "}"))
        if ends:
            yield _item(lines)
            lines, begun = [], False
    if any(line.strip() for line in lines):
        yield _item(lines)


def _item(lines: list[str]) -> _Item:
    text = "\n".join(lines)
    code = "\n".join(map(_code, lines)).strip()
    condition = found[1] if (found := _CONDITION.match(code)) else ""
    return _Item(text, _names(code), condition, _words(text))


def _names(code: str) -> frozenset[str]:
    """What a piece of the top level defines, or is about; nothing where that is not seen."""
    if code.startswith("#"):
        return frozenset({found[1]} if (found := _MACRO.match(code)) else ())
    head = re.split(r"[{=;]", code, maxsplit=1)[0]
    return frozenset(_FUNCTION.findall(head) or _SHARED.findall(head))
