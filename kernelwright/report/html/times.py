"""Times of all entries with their spread, and under which circumstances they were taken."""

from __future__ import annotations

from typing import Any

from kernelwright.report import units
from kernelwright.report.measured import OURS, SHORT, doubts
from kernelwright.timing import Timing
from kernelwright.timing.baselines import CANDIDATE
from kernelwright.timing.environment import throttling
from kernelwright.timing.speedup import TIE, UNKNOWN

HEAD = ("", "cold", "25-75 %", "least", "95 % of the median", "in a row", "waited for", "runs", "rounds left out",
        f"speed-up of {OURS}", "95 %", "% of roofline")
HOW = (f"cold: median of calls with flushed caches; in a row: wall time of a call among many, warm, with what the host "
       f"does; waited for: wall time of one warm call until its result is there; speed-up: of {OURS} over each, cold.")


def times(timing: Timing) -> dict[str, Any]:
    """The table, bars of 25-75 % of the calls, the terminal's sentences, and the machine's state."""
    longest = max((entry.upper_quartile for entry in timing.entries.values()), default=0.0)
    rows = []
    for name, entry in timing.entries.items():
        found, share = timing.speed_up(name), timing.share_of_floor.get(name)
        speed = ["", ""] if found is None else [UNKNOWN, ""] if found.verdict == UNKNOWN else [
            f"{units.digits(found.value)}x{' (a tie)' if found.verdict == TIE else ''}",
            f"{units.digits(found.low)} to {units.digits(found.high)}"]
        rows.append({
            "name": OURS if name == CANDIDATE else name, "ours": name == CANDIDATE,
            "cells": [units.seconds(entry.median), units.span(entry.lower_quartile, entry.upper_quartile),
                      units.seconds(entry.minimum), units.span(*entry.interval), _seconds(entry.back_to_back_seconds),
                      _seconds(entry.waited_seconds), str(entry.repetitions), str(entry.void), *speed,
                      f"{100 * share:.3g} %" if share is not None else ""],
            "median": _percent(entry.median, longest), "left": _percent(entry.lower_quartile, longest),
            "width": _percent(entry.upper_quartile - entry.lower_quartile, longest)})
    return {"rows": rows, "sentences": doubts(timing), "quiet": quiet(timing), "facts": facts(timing)}


def quiet(timing: Timing) -> str:
    """Whether the machine was quiet while this was measured, as far as that was seen."""
    busy = [SHORT.get(name, name) for name, entry in timing.entries.items() if entry.busy]
    void = max((entry.void for entry in timing.entries.values()), default=0)
    load = f" The load was {timing.environment['load']} when it ended." if timing.environment.get("load") else ""
    slowed = throttling(timing.environment)
    slow = f" The device ran below its full speed: {', '.join(slowed)}." if slowed else ""
    if busy:
        return f"The machine was busy: other programs took the processors from {', '.join(busy)}.{load}{slow}"
    if void:
        return (f"The machine was not always quiet: {units.counted(void, 'round')} in which threads waited for a "
                f"processor {'was' if void == 1 else 'were'} left out.{load}{slow}")
    return f"No round was left out for threads that waited for a processor.{load}{slow}"


def facts(timing: Timing) -> list[tuple[str, str]]:
    """Device, versions and circumstances, by name."""
    return [("device", timing.device), *timing.versions.items(), *timing.environment.items()]


def _seconds(value: float | None) -> str:
    return units.seconds(value) if value is not None else ""


def _percent(value: float, most: float) -> str:
    return f"{100 * value / most:.2f}" if most else "0"
