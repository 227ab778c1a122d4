"""The user's source lines as comments of an emitted file."""

from __future__ import annotations

from collections.abc import Iterable

from kernelwright.ir.node import Node, Origin

_WIDTH = 118
_MOST_LINES = 6


def comment(text: str, mark: str, width: int = _WIDTH) -> str:
    """The text as a comment of one line: nothing in it ends the comment, a literal around it, or goes on below.

    mark: ``#`` or ``//``, with what stands before it. width: of the comment, in characters.
    """
    shown = "".join(c if c.isprintable() else " " for c in text).replace('"""', "'''").replace("*/", "* /")
    shown = f"{mark} {shown}"
    shown = shown if len(shown) <= width else shown[:width - 4] + " ..."
    return shown.rstrip("\\ \t")


def source_lines(nodes: Iterable[Node]) -> list[str]:
    """The lines of the user's files that nodes came from, as comments of C++ by file and line, each once.

    A file is named without its folder.
    """
    origins: dict[tuple[str, int], Origin] = {}
    for node in nodes:
        if node.origin is not None and node.origin.line and node.origin.text:
            file = node.origin.file.replace("\\", "/").rsplit("/", 1)[-1]
            origins.setdefault((file, node.origin.line), node.origin)
    lines = [comment(f"{file}:{line}: {origins[file, line].text}", "//") for file, line in sorted(origins)]
    more = len(lines) - _MOST_LINES
    return lines if more <= 1 else [*lines[:_MOST_LINES], f"// and {more} more lines"]
