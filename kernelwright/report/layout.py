"""Lines of a text report: headings, wrapped paragraphs and tables, with or without colours."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

LEAST_WIDTH = 40
#: Columns of the console, which so breaks and cuts nothing: what is to be wrapped is wrapped before.
_UNLIMITED = 1 << 20


class Page:
    """Collects lines. ``width`` is the number of columns that paragraphs are wrapped to.

    Styles are rich's ("bold", "dim", "red", ...). No text is read as markup.
    """

    def __init__(self, colour: bool, width: int) -> None:
        self.width = max(LEAST_WIDTH, width)
        from rich.console import Console  # it takes a third of a second, which not every run has to spend

        self._written = io.StringIO()
        self._console = Console(file=self._written, width=_UNLIMITED, height=1, force_terminal=colour,
                                color_system="standard" if colour else None, no_color=not colour,
                                force_jupyter=False, legacy_windows=False)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line, not wrapped, of texts and of texts with their style; without any an empty one."""
        from rich.text import Text

        self._console.print(Text.assemble(*parts))

    def heading(self, text: str) -> None:
        """A section's heading, after an empty line."""
        if self._written.tell():
            self.line()
        self.line((text, "bold"))

    def paragraph(self, text: str, style: str = "", *, indent: int = 2, first: str = "", hanging: int = 0) -> None:
        """Wrapped text, ``indent`` columns in; ``first`` begins it, further lines hang ``hanging`` deeper."""
        margin = " " * indent
        for line in text.split("\n"):  # rich breaks a word that is longer than a line, or cuts it; textwrap need not
            wrapped = textwrap.wrap(first + line, self.width, initial_indent=margin,
                                    subsequent_indent=margin + " " * (hanging or len(first)),
                                    break_long_words=False, break_on_hyphens=False)
            for row in wrapped:
                self.line((row, style))
            first = " " * len(first)

    def verbatim(self, text: str) -> None:
        """Lines as they are, not wrapped: programs and graphs."""
        for line in text.splitlines():
            self.line("  " + line)

    def table(self, rows: Sequence[Sequence[str]], *, head: Sequence[str], styles: Sequence[str] = ()) -> None:
        """Columns as wide as their widest cell. ``styles`` holds the style of each row of ``rows``."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        for row, style in [(head, "dim"), *zip_longest(rows, styles[:len(rows)], fillvalue="")]:
            grid.add_row(*(Text.assemble((cell, style)) for cell in row))  # so that blanks beside it have no style
        self._console.print(Padding.indent(grid, 2))

    def text(self) -> str:
        """All lines, without trailing blanks or a final newline."""
        return "\n".join(line.rstrip() for line in self._written.getvalue().removesuffix("\n").split("\n"))
