"""Templates of pages: those of this folder, which others build on, and of further folders."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def templates(*folders: Path) -> Environment:
    """An environment whose texts are escaped, and in which a name without a value is an error. Templates are looked for
    in ``folders``, then here."""
    return Environment(loader=FileSystemLoader([*folders, Path(__file__).parent]), autoescape=True,
                       undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
