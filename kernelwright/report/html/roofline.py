"""The roofline chart: operations for each byte against operations in a second, below what the device can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.records import Mode
from kernelwright.report import units
from kernelwright.report.html.program import CALL, CAPTURED, MEASURED, WHOLE, Row, captured_rows, program_rows
from kernelwright.report.html.scale import Logarithmic, around
from kernelwright.report.measured import OURS
from kernelwright.roofline.devices import Device
from kernelwright.timing.baselines import CANDIDATE, EAGER
from kernelwright.timing.speedup import UNKNOWN

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 98, 16, 16, 40
#: The room that a mark's number takes on the chart.
_NUMBER_WIDTH, _NUMBER_HEIGHT = 16, 11
#: Roofs that differ by less are one.
_SAME = 1.05


@dataclass(frozen=True, slots=True)
class Mark:
    """A row on the chart. shape: circle before, square for a kernel, diamond for what stays a PyTorch call; ring for a
    whole call. labelled: whether there is room for its number."""

    number: int
    row: Row
    shape: str
    x: float
    y: float
    title: str
    labelled: bool = True


def roofline(mode: Mode, device: Device) -> dict[str, Any] | None:
    """The chart and its table; None for a mode of which no step is known."""
    before = captured_rows(mode, device.launch_seconds)
    after = program_rows(mode, device.launch_seconds)
    rows = [*before, *after, *whole_rows(mode)]
    if not before:
        return None
    shown = [row for row in rows if row.operations and row.bytes and row.seconds]
    ridge = device.float32 / device.memory_peak
    across = around([ridge / 4, ridge * 4, *(row.intensity for row in shown)], LEFT, WIDTH - RIGHT)
    roofs = arithmetic_roofs(device)
    rates = [roofs[0][1] / 1000, *(rate for _, rate in roofs), *(row.rate for row in shown)]
    up = around(rates, HEIGHT - BOTTOM, TOP, margin=2.0)
    assert across is not None and up is not None
    marks = [Mark(number, row, _shape(row), across.at(row.intensity), up.at(row.rate), _title(row))
             for number, row in enumerate(rows, 1) if row in shown]
    return {
        "marks": labelled(marks), "across": across, "up": up,
        "table": [_cells(number, row) for number, row in enumerate(rows, 1)], "without": len(rows) - len(shown),
        "above": [row.name for row in rows if row.known == MEASURED and row.seconds < row.least_seconds],
        "roofs": _roofs(roofs, across, up, device),
        "memory": {"name": f"memory: {units.memory(device.memory_peak)}/s", **_memory(device, across, up, roofs)},
    }


def labelled(marks: Sequence[Mark]) -> list[Mark]:
    """The marks, without the numbers that would stand on others: the later rows, which are the file's, come first."""
    taken: list[tuple[float, float]] = []
    found: list[Mark] = []
    for mark in reversed(marks):
        free = all(abs(mark.x - x) > _NUMBER_WIDTH or abs(mark.y - y) > _NUMBER_HEIGHT for x, y in taken)
        taken += [(mark.x, mark.y)] * free
        found.append(replace(mark, labelled=free))
    return found[::-1]


def arithmetic_roofs(device: Device) -> list[tuple[str, float]]:
    """(name, operations in a second) of what float32 work may use, from below, without those that are nearly the same.
    """
    found: list[tuple[str, float]] = []
    for name, rate in (("float32 multiply-adds", device.float32),
                       ("fastest units, float32's accuracy", device.best_arithmetic()),
                       ("fastest units, TF32", device.best_arithmetic(tf32=device.rounds_products))):
        if not found or rate > _SAME * found[-1][1]:
            found.append((name, rate))
    return found


def whole_rows(mode: Mode) -> list[Row]:
    """Eager's call and that of the file, as measured, where the times hold."""
    timing = mode.timing
    if timing is None or EAGER not in timing.entries or timing.entries[EAGER].busy:
        return []
    found = timing.speed_up(EAGER)
    if found is not None and found.verdict == UNKNOWN:
        return []
    floor = mode.floor_seconds
    rows = [Row(WHOLE, EAGER, "", 1, mode.before.operations, mode.before.bytes, timing.entries[EAGER].median, floor,
                MEASURED)]
    if mode.steps and CANDIDATE in timing.entries:
        rows.append(Row(WHOLE, OURS, "", 1, sum(step.operations for step in mode.steps),
                        sum(step.bytes for step in mode.steps), timing.entries[CANDIDATE].median, floor, MEASURED))
    return rows


def _roofs(roofs: Sequence[tuple[str, float]], across: Logarithmic, up: Logarithmic, device: Device
           ) -> list[dict[str, Any]]:
    """The lines on which arithmetic takes the time, the highest first, with the places of their names below each other.
    """
    found: list[dict[str, Any]] = []
    for name, rate in reversed(roofs):
        y = up.at(rate)
        label = max(y - 5, found[-1]["label"] + 13) if found else y - 5
        found.append({"name": f"{name}: {units.operations(rate)}/s", "y": y, "label": label,
                      "x": across.at(rate / device.memory_peak)})
    return found


def _memory(device: Device, across: Logarithmic, up: Logarithmic, roofs: Sequence[tuple[str, float]]
            ) -> dict[str, float]:
    """The line on which memory takes the time, as far as it is on the chart."""
    low = max(across.low, up.low / device.memory_peak)
    high = min(across.high, roofs[-1][1] / device.memory_peak)
    x1, y1, x2, y2 = across.at(low), up.at(low * device.memory_peak), across.at(high), up.at(high * device.memory_peak)
    return {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "angle": math.degrees(math.atan2(y2 - y1, x2 - x1))}


def _shape(row: Row) -> str:
    if row.form == WHOLE:
        return "ring"
    return {CAPTURED: "circle", CALL: "diamond"}.get(row.form, "square")


def _title(row: Row) -> str:
    times = f"{row.count} times " if row.count > 1 else ""
    place = f" ({row.where})" if row.where else ""
    return (f"{times}{row.name}{place}, {row.form}: {units.digits(row.intensity)} operations a byte, "
            f"{units.operations(row.rate)}/s, {units.seconds(row.seconds)} {row.known}")


def _cells(number: int, row: Row) -> list[str]:
    return [str(number), row.form, f"{row.count} x {row.name}" if row.count > 1 else row.name,
            units.operations(row.operations), units.memory(row.bytes),
            units.digits(row.intensity) if row.operations and row.bytes else "-", units.seconds(row.seconds), row.known,
            f"{100 * row.least_seconds / row.seconds:.3g} %" if row.seconds and row.least_seconds else "-",
            f"{100 * row.share:.2g} %" if row.share is not None else "-", row.where]


TABLE_HEAD = ("no.", "what", "name", "operations", "bytes", "operations a byte", "time of one", "known as",
              "% of its roof", "% of the modelled time", "line")
