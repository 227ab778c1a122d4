"""Lines of a text report: headings, wrapped paragraphs and tables, with or without colours."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
LEAST_WIDTH = 40


class Page:
    """Collects lines. ``width`` is the number of columns that paragraphs are wrapped to."""

    def __init__(self, colour: bool, width: int) -> None:
        self.colour = colour
        self.width = max(LEAST_WIDTH, width)
        self.lines: list[str] = []

    def paint(self, text: str, *styles: str) -> str:
        """``text`` in the given styles, or as it is where colours are off."""
        if not self.colour or not styles or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def heading(self, text: str) -> None:
        """A section's heading, after an empty line."""
        if self.lines:
            self.lines.append("")
        self.lines.append(self.paint(text, "bold"))

    def paragraph(self, text: str, *styles: str, indent: int = 2, first: str = "", hanging: int = 0) -> None:
        """Wrapped text, ``indent`` columns in; ``first`` begins it, further lines hang ``hanging`` deeper."""
        margin = " " * indent
        for line in text.split("\n"):
            wrapped = textwrap.wrap(first + line, self.width, initial_indent=margin,
                                    subsequent_indent=margin + " " * (hanging or len(first)),
                                    break_long_words=False, break_on_hyphens=False)
            self.lines += [self.paint(row, *styles) for row in wrapped]
            first = " " * len(first)

    def verbatim(self, text: str, *styles: str, indent: int = 2) -> None:
        """Lines as they are, not wrapped: programs and graphs."""
        self.lines += [" " * indent + self.paint(line, *styles) for line in text.splitlines()]

    def table(self, rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), indent: int = 2,
              styles: Sequence[Sequence[str]] = ()) -> None:
        """Columns as wide as their widest cell. ``styles`` holds the styles of each row of ``rows``."""
        everything = ([head] if head else []) + list(rows)
        if not everything:
            return
        columns = max(len(row) for row in everything)
        widths = [max((len(row[c]) for row in everything if c < len(row)), default=0) for c in range(columns)]
        margin = " " * indent
        for number, row in enumerate(everything):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            index = number - (1 if head else 0)
            style = ("dim",) if index < 0 else tuple(styles[index]) if index < len(styles) else ()
            self.lines.append(margin + self.paint(text, *style))

    def text(self) -> str:
        """All lines, without trailing blanks or a final newline."""
        return "\n".join(line.rstrip() for line in self.lines)
