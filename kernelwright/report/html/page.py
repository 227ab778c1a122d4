"""The report of one result as a page: its sections in order."""

from __future__ import annotations

from typing import Any

from kernelwright.emit.marks import kernel_texts
from kernelwright.records import Mode, ResultRecord, words_of
from kernelwright.report import units, verdict
from kernelwright.report.groups import (
    ModeGroup,
    kept_by_reason,
    mode_groups,
    operators_in_words,
    rule_groups,
)
from kernelwright.report.html import accuracy, graphs, kernels, roofline, times, untried, waterfall
from kernelwright.report.html.environment import templates
from kernelwright.report.text import summary, usage

#: What a style of the terminal's report says, where colours are not seen.
SIGNS = {"green": "good", "yellow": "mind", "red": "bad", "dim": "aside", "": "plain"}


def render_html(result: ResultRecord) -> str:
    """The page as text. It depends on the result alone: the same one gives the same page."""
    groups = mode_groups(result)
    several = len(result.modes) > 1
    untried_notes, other_notes = untried.notes(result)
    texts = kernel_texts(result.source)
    return templates().get_template("report.html.jinja").render(
        result=result, title=verdict.title(result), verdict=[(label, text, SIGNS.get(style, "plain"))
                                                             for label, text, style in verdict.lines(result)],
        summary=_signed(summary(result, groups)), groups=[_group(group, result, texts, len(groups) > 1)
                                                          for group in groups],
        modes=[_measured(mode, words_of(mode.name) if several else "") for mode in result.modes],
        untried_notes=untried_notes, notes=other_notes, signs=SIGNS,
        stages=[(name, units.seconds(seconds)) for name, seconds in result.stages.items()],
        figures=_figures(result), usage=usage(result, result.path.stem if result.path is not None else "FILE"),
        quantity=units.digits, rate=lambda value: f"{units.operations(value)}/s",
        launchers=texts.get("launchers", ""),
        ROOFLINE_HEAD=roofline.TABLE_HEAD, KEPT_HEAD=untried.KEPT_HEAD, TRIAL_HEAD=accuracy.TRIAL_HEAD,
        TIMES_HEAD=times.HEAD, TIMES_HOW=times.HOW, SIZE=(roofline.WIDTH, roofline.HEIGHT, roofline.LEFT,
                                                          roofline.RIGHT, roofline.TOP, roofline.BOTTOM))


def _signed(sentences: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(text, SIGNS.get(style, "plain")) for text, style in sentences]


def _group(group: ModeGroup, result: ResultRecord, texts: dict[str, str], labelled: bool) -> dict[str, Any]:
    """One program: of all modes that run it."""
    mode, device = group.first, result.figures
    timed = next((m for m in group.modes if m.timing is not None), mode)
    return {
        "label": group.words() if labelled else "", "mode": mode,
        "timed": words_of(timed.name) if timed.timing is not None and len(group.modes) > 1 else "",
        "roofline": roofline.roofline(timed, device) if device is not None else None,
        "waterfall": waterfall.waterfall(timed, device) if device is not None else None,
        "before": graphs.graph_before(mode) if mode.captured_steps else None,
        "after": graphs.graph_after(mode) if mode.steps else None,
        "kernels": kernels.kernels(mode, texts, device.launch_seconds if device is not None else 0.0),
        "backward": [kernels.backward(mode, use, texts) for use in group.backward],
        "rules": [{"use": found.first, "count": found.count, "places": found.places()}
                  for found in rule_groups(mode.rules)],
        "kept": [{"why": why, "operators": operators_in_words(entries), "count": len(entries)}
                 for why, entries in kept_by_reason(mode.kept).items()],
        "kept_rows": untried.kept(mode, device) if device is not None else [],
        "work": [["operations", units.operations(mode.before.operations), units.operations(mode.after.operations),
                  units.change(mode.before.operations, mode.after.operations, "fewer")],
                 ["memory traffic", units.memory(mode.before.bytes), units.memory(mode.after.bytes),
                  units.change(mode.before.bytes, mode.after.bytes)]],
        "floor": f"{units.seconds(mode.floor_seconds)}{': ' + mode.floor_words if mode.floor_words else ''}",
        "counts": f"{units.counted(sum(s.is_kernel for s in mode.steps), 'kernel')}, in thick frames, and "
                  f"{units.counted(sum(not s.is_kernel for s in mode.steps), 'PyTorch call')}",
    }


def _measured(mode: Mode, label: str) -> dict[str, Any]:
    """What was measured of one mode."""
    found = accuracy.accuracy(mode.certificate) if mode.certificate is not None else None
    if found is not None:
        found["checks"] = _signed(found["checks"])
    timed = times.times(mode.timing) if mode.timing is not None else None
    if timed is not None:
        timed["sentences"] = _signed(timed["sentences"])
    return {"label": label, "accuracy": found, "times": timed, "room": untried.room(mode),
            "left_out": untried.checks_left_out(mode)}


def _figures(result: ResultRecord) -> list[tuple[str, str]]:
    """What the device can do at most, in words."""
    device = result.figures
    if device is None:
        return []
    return [("roofline of", device.title), ("memory at most", f"{units.memory(device.memory_peak)}/s"),
            ("memory, read", f"{units.memory(device.read)}/s"),
            ("float32 multiply-adds", f"{units.operations(device.float32)}/s"),
            ("float32 products", f"{units.operations(device.float32_matmul)}/s"),
            ("float64", f"{units.operations(device.float64)}/s"), ("a launch", units.seconds(device.launch_seconds)),
            ("figures", device.source)]
