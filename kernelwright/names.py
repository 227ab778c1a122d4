"""The order of names that have numbers in them."""

from __future__ import annotations

import re


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in names by value: level2/9 before level2/10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
