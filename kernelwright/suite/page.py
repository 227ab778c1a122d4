"""The records of a suite as one HTML page: nothing is loaded from elsewhere, and it reads without scripts.

What is said is gathered here; how it is marked up stands in ``page.html.jinja``, with ``page.css`` and ``page.js``, and
in what pages share (:mod:`kernelwright.report.html`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kernelwright.records import Kept, RuleUse
from kernelwright.report import units
from kernelwright.report.groups import kept_by_reason, operators_in_words, rule_groups
from kernelwright.report.html.environment import templates
from kernelwright.report.measured import OURS
from kernelwright.suite.chart import speed_chart
from kernelwright.suite.scores import (
    GroupScore,
    ProblemScore,
    baselines_of,
    holds,
    score_groups,
    score_problems,
)
from kernelwright.suite.table import (
    AGAINST_HEAD,
    DEFINITIONS,
    LEVEL_HEAD,
    against_row,
    headline,
    level_row,
    problem_head,
    problem_row,
    sentences,
)
from kernelwright.timing.baselines import CANDIDATE
from kernelwright.timing.speedup import UNKNOWN

_TIMES_HEAD = ("time", "cold", "in a row", "25-75 %", "runs", f"speed-up of {OURS} (95 %)", "% of roofline")
_TEMPLATES = templates(Path(__file__).parent)


def render_page(records: Iterable[Mapping[str, Any]], title: str = "kernelwright suite") -> str:
    """The page as text: levels, speed-ups, and each problem with rules, kernels, what was kept, checks and errors.

    ``records``: as read from results.jsonl, in any order; of several records of one problem the last is shown.
    """
    records = list(records)
    latest = {record["problem"]: record for record in records}
    scores = score_problems(records)
    groups, baselines = score_groups(scores), baselines_of(scores)
    return _TEMPLATES.get_template("page.html.jinja").render(
        title=title, headline=headline(records) if records else "No problem has a result.", groups=groups,
        LEVEL_HEAD=LEVEL_HEAD, AGAINST_HEAD=AGAINST_HEAD, TIMES_HEAD=_TIMES_HEAD, DEFINITIONS=DEFINITIONS,
        levels=[level_row(group) for group in groups],
        baselines=[_against(groups, name, speed_chart(scores, name)) for name in baselines],
        sentences=sentences(records, scores) if groups else [], problem_head=problem_head(baselines),
        problems=[_problem(score, latest[score.name], baselines) for score in scores])


def _against(groups: Sequence[GroupScore], baseline: str, chart: str) -> dict[str, Any]:
    found = [(group, entry) for group in groups for entry in group.against if entry.baseline == baseline]
    return {"name": baseline, "chart": chart, "rows": [against_row(group, entry) for group, entry in found],
            "parts": [group.part for group, _ in found]}


def _problem(score: ProblemScore, record: Mapping[str, Any], baselines: Sequence[str]) -> dict[str, Any]:
    """The line of a problem, and what it unfolds to."""
    result = record.get("result") or {}
    modes = result.get("modes") or []
    cells = zip(problem_row(score, baselines), _sort_keys(score, baselines), strict=True)
    error = record.get("error")  # what, where, why and how to mend it; a bug's report; or any other text as it is
    stages = ", ".join(f"{name} {units.seconds(value)}" for name, value in (result.get("stages") or {}).items())
    return {
        "score": score,
        "cells": [{"text": text, "key": key, "kind": _cell_class(score, index, baselines)}
                  for index, (text, key) in enumerate(cells)],
        "error": {"what": error} if isinstance(error, str) and error else error,
        "modes": [_mode(mode, f"{mode['name']} mode" if len(modes) > 1 else "") for mode in modes],
        "notes": result.get("notes"), "page": quote(record.get("page") or ""),
        "facts": [
            ("level", score.level), ("state", score.state), ("kind", score.kind), ("stages", stages),
            ("took", units.seconds(record["seconds"]) if record.get("seconds") is not None else ""),
            ("attempts", record.get("attempts")),
            ("peak memory", units.memory(record["peak_memory_bytes"]) if record.get("peak_memory_bytes") else ""),
            ("device", record.get("device")), ("emitted", record.get("emitted"))],
    }


def _sort_keys(score: ProblemScore, baselines: Sequence[str]) -> list[float | str]:
    """What each column of a problem is sorted by; "" stands last."""
    share = score.replaced / score.operators if score.operators else ""
    values = [share if score.verified else -1.0, *(score.times.get(name) for name in baselines), score.ours,
              *(score.speeds[name].value if name in score.speeds else None for name in baselines),
              score.share_of_floor, score.error, score.eager_error]
    return [score.name, *("" if value is None else value for value in values)]


def _cell_class(score: ProblemScore, index: int, baselines: Sequence[str]) -> str:
    first = 3 + len(baselines)
    if first <= index < first + len(baselines):
        speed = score.speeds.get(baselines[index - first])
        if speed is not None and speed.is_slower:
            return "slower"
        return "faster" if speed is not None and speed.low > 1.0 else ""
    return "state" if index == 1 and not score.verified else ""


def _mode(mode: Mapping[str, Any], title: str) -> dict[str, Any]:
    before, after, timing = mode["before"], mode["after"], mode.get("timing")
    words = f": {mode['floor_words']}" if mode.get("floor_words") else ""
    kept = kept_by_reason(_record(Kept, entry) for entry in mode["kept"])
    return {
        "title": title, "certificate": mode.get("certificate"), "kernels": mode["kernels"],
        "times": _times(timing) if timing else [], "failures": timing["failures"] if timing else {},
        "rules": rule_groups(_record(RuleUse, rule) for rule in mode["rules"]),
        "kept": [{"why": why, "operators": operators_in_words(entries)} for why, entries in kept.items()],
        "work": [["operations", units.operations(before["operations"]), units.operations(after["operations"]),
                  units.change(before["operations"], after["operations"], "fewer")],
                 ["memory traffic", units.memory(before["bytes"]), units.memory(after["bytes"]),
                  units.change(before["bytes"], after["bytes"])]],
        "floor": f"{units.seconds(mode['floor_seconds'])}{words}",
    }


def _times(timing: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, entry in timing["entries"].items():
        ratio = timing["ratios"].get(name) if name in timing["ratios"] and CANDIDATE in timing["entries"] else None
        spread = ""
        if ratio is not None:
            spread = f"{units.digits(ratio['value'])}x ({units.digits(ratio['low'])} to {units.digits(ratio['high'])})"\
                if holds(name, ratio, timing["entries"]) else UNKNOWN
        floor, warm = timing["share_of_floor"].get(name), entry.get("back_to_back_seconds")
        rows.append([OURS if name == CANDIDATE else name, units.seconds(entry["median"]),
                     units.seconds(warm) if warm is not None else "",
                     units.span(entry["lower_quartile"], entry["upper_quartile"]), str(entry["repetitions"]), spread,
                     f"{100 * floor:.3g} %" if floor is not None else ""])
    return rows


def _record(kind: type, values: Mapping[str, Any]) -> Any:
    """The record that ``values`` were made of."""
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})
