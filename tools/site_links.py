"""A hook of the site: where a page names another one, as in `docs/judge.md`, the name leads there.

The pages name files as they stand in the repository, which is what a reader of the sources needs.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_NAMED = re.compile(r"(?<!\[)`docs/([\w/]+\.(?:md|json))`(?!\])")
#: Blocks of code: fenced ones, and lines that begin with four spaces.
_CODE = re.compile(r"(^```.*?^```$|^    [^\n]*$)", re.DOTALL | re.MULTILINE)


def linked(text: str, path: str) -> str:
    """A page's text with links. path: the page's own, below docs/."""
    folder = posixpath.dirname(path) or "."

    def link(found: re.Match[str]) -> str:
        return found[0] if found[1] == path else f"[{found[0]}]({posixpath.relpath(found[1], folder)})"

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _NAMED.sub(link, part) for number, part in enumerate(parts))


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """What MkDocs calls with each page's text."""
    return linked(markdown, page.file.src_uri)
