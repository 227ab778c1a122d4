"""What was not tried or is left to PyTorch, and what it might give at most, as far as that can be said."""

from __future__ import annotations

from typing import Any

from kernelwright.records import UNTRIED, Mode, ResultRecord
from kernelwright.report import units
from kernelwright.report.html.program import modelled_seconds
from kernelwright.report.measured import OURS
from kernelwright.roofline.devices import Device
from kernelwright.timing.baselines import CANDIDATE, EAGER

KEPT_HEAD = ("stays with PyTorch", "count", "modelled time", "% of the program", "least by the roofline",
             "might save at most", "why", "line")


def kept(mode: Mode, device: Device) -> list[list[str]]:
    """What stays a torch call, those of a line together, the costly first, with the time that no kernel could beat."""
    launch = device.launch_seconds
    steps = mode.steps or mode.captured_steps
    total = modelled_seconds(steps, launch)
    reasons = {(entry.operator, entry.where): entry.reason for entry in mode.kept}
    groups: dict[tuple[str, str], list[Any]] = {}
    for step in steps:
        if not step.is_kernel:
            groups.setdefault((step.name, step.where), []).append(step)
    rows = []
    for (name, where), alike in groups.items():
        modelled = modelled_seconds(alike, launch)
        least = sum(step.least_seconds for step in alike)
        rows.append((modelled, [name, str(len(alike)), units.seconds(modelled),
                                f"{100 * modelled / total:.2g} %" if total else "", units.seconds(least),
                                units.seconds(max(0.0, modelled - least)),
                                reasons.get((name, where), "nothing of ours replaces it"), where]))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def room(mode: Mode) -> str:
    """How far the measured time is above the roofline; "" where that is not known."""
    timing = mode.timing
    name = CANDIDATE if mode.runs else EAGER
    if timing is None or name not in timing.entries or not mode.floor_seconds:
        return ""
    median = timing.entries[name].median
    words = OURS if mode.runs else "the original"
    if timing.entries[name].busy or median <= mode.floor_seconds:
        return ""
    return (f"{words} takes {units.seconds(median)}; no version of the rewritten graph takes less than "
            f"{units.seconds(mode.floor_seconds)} on this device, so that at most a factor of "
            f"{units.digits(median / mode.floor_seconds)} is left.")


def notes(result: ResultRecord) -> tuple[list[str], list[str]]:
    """(notes on what there was no time for, all others)."""
    untried = [note for note in result.notes if note.startswith(UNTRIED)]
    return untried, [note for note in result.notes if not note.startswith(UNTRIED)]


def checks_left_out(mode: Mode) -> list[str]:
    """Trials and baselines that did not run, with the reasons."""
    found = [f"{name} has no time: {why}" for name, why in (mode.timing.failures if mode.timing else {}).items()]
    skipped: dict[str, list[str]] = {}
    for entry in mode.certificate.skipped if mode.certificate is not None else ():
        skipped.setdefault(entry.why, []).append(entry.plan.kind)
    return found + [f"{units.counted(len(kinds), 'trial')} did not run ({why}): {', '.join(dict.fromkeys(kinds))}"
                    for why, kinds in skipped.items()]
