"""The graph before and after as rows with arcs between them: operators of one line are one row, and so are equal steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.records import Mode, Step
from kernelwright.report import units

WIDTH, ROW, GUTTER = 440, 40, 56
#: Rows of a graph; what follows is told by its number.
MOST_ROWS = 60
_MOST_CHARACTERS, _MOST_SMALL = 46, 62


@dataclass(slots=True)
class Line:
    """A row: the steps that stand together, and the rows that they read."""

    names: list[str] = field(default_factory=list)
    where: str = ""
    is_kernel: bool = False
    does: str = ""
    repeats: bool = False
    reads: set[int] = field(default_factory=set)


def graph_before(mode: Mode) -> dict[str, Any]:
    """The captured operators, those of one of the user's lines as one row, with the steps that do their work."""
    doers: dict[int, list[str]] = {}
    for step in mode.steps:
        for number in step.replaces:
            doers.setdefault(number, []).append(step.name if step.is_kernel else "PyTorch")
    lines, placed = folded(mode.captured_steps, [step.where or (step.name, "") for step in mode.captured_steps])
    for number, line in enumerate(placed):
        found = dict.fromkeys([*filter(None, lines[line].does.split(", ")), *doers.get(number, [])])
        lines[line].does = ", ".join(found)
    return drawn(lines, "done by ")


def graph_after(mode: Mode) -> dict[str, Any]:
    """The steps of the file, equal ones as one row, with the operators whose work they do."""
    lines, placed = folded(mode.steps, [(step.name, step.is_kernel or step.where) for step in mode.steps])
    names: list[Counter[str]] = [Counter() for _ in lines]
    for step, line in zip(mode.steps, placed):
        if step.is_kernel:
            names[line].update(mode.captured_steps[number].name for number in step.replaces)
    for line, found in zip(lines, names):
        line.does = in_words(found.elements())
    return drawn(lines, "does ")


def folded(steps: Sequence[Step], keys: Sequence[Hashable]) -> tuple[list[Line], list[int]]:
    """The rows in the order of their first steps, and the row of each step: steps with one key are one row."""
    rows: dict[Hashable, int] = {}
    lines: list[Line] = []
    placed: list[int] = []
    for step, key in zip(steps, keys, strict=True):
        row = rows.setdefault(key, len(rows))
        if row == len(lines):
            lines.append(Line(where=step.where, is_kernel=step.is_kernel))
        lines[row].names.append(step.name)
        placed.append(row)
    for step, row in zip(steps, placed):
        for number in step.reads:
            if placed[number] < row:
                lines[row].reads.add(placed[number])
            elif placed[number] > row:
                lines[row].repeats = True
    return lines, placed


def in_words(names: Any) -> str:
    """``conv2d, 2 relu``."""
    return ", ".join((f"{count} " if count > 1 else "") + name for name, count in Counter(names).items())


def drawn(lines: Sequence[Line], verb: str) -> dict[str, Any]:
    """Rows with their places, and arcs: an arc to the next row is straight, others bow out by how far they reach."""
    shown = lines[:MOST_ROWS]
    rows, arcs = [], []
    for number, line in enumerate(shown):
        y = ROW * number
        words = in_words(line.names)
        small = " - ".join(filter(None, (verb + line.does if line.does else "", line.where)))
        if line.repeats:
            small = "in a loop; " + small
        rows.append({"y": y, "text": _cut(words, _MOST_CHARACTERS), "small": _cut(small, _MOST_SMALL),
                     "title": f"{words}: {small}" if small else words, "is_kernel": line.is_kernel})
        for source in sorted(line.reads):
            first, last = ROW * source + ROW - 10, y + 4
            out = 0 if number - source == 1 else min(GUTTER, 12 + 4 * (number - source))
            arcs.append({"first": first, "last": last, "x": GUTTER, "out": GUTTER - out,
                         "title": f"{in_words(shown[source].names)} to {words}"})
    more = len(lines) - len(shown)
    return {"rows": rows, "arcs": arcs, "height": ROW * len(rows), "width": WIDTH, "gutter": GUTTER, "row": ROW,
            "more": f"{units.counted(more, 'further row')} {'is' if more == 1 else 'are'} in the table of the roofline."
            if more else ""}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 3] + "..."
