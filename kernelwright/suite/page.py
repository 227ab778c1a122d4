"""The records of a suite as one HTML page: nothing is loaded from elsewhere, and it reads without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from kernelwright.records import Kept, RuleUse
from kernelwright.report import units
from kernelwright.report.groups import kept_by_reason, operators_in_words, rule_groups
from kernelwright.report.measured import OURS
from kernelwright.suite.chart import speed_chart
from kernelwright.suite.page_style import SCRIPT, STYLE
from kernelwright.suite.scores import (
    GroupScore,
    ProblemScore,
    baselines_of,
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


def render_page(records: Iterable[Mapping[str, Any]], title: str = "kernelwright suite") -> str:
    """The page as text: levels, speed-ups, and each problem with rules, kernels, what was kept, checks and errors.

    ``records``: as read from results.jsonl, in any order; of several records of one problem the last is shown.
    """
    records = list(records)
    latest = {record["problem"]: record for record in records}
    scores = score_problems(records)
    groups = score_groups(scores)
    body = [f"<h1>{escape(title)}</h1>", _paragraph(headline(records) if records else "No problem has a result.")]
    if groups:
        baselines = baselines_of(scores)
        body += [_table(LEVEL_HEAD, [level_row(group) for group in groups], parts=[group.part for group in groups])]
        for baseline in baselines:
            body += [f"<h2>Against {escape(baseline)}</h2>", _against(groups, baseline), speed_chart(scores, baseline)]
        body += [_paragraph(DEFINITIONS, "dim"), _list(sentences(records, scores)), "<h2>Problems</h2>", _CONTROLS,
                 _problems(scores, latest, baselines)]
    return ("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
            f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n" + "\n".join(body)
            + f"\n<script>{SCRIPT}</script></body></html>\n")


_CONTROLS = ('<p class="controls" hidden><input id="filter" type="search" placeholder="name, state, kind, operator or '
             'rule" aria-label="Filter the problems"> <button id="unfold" type="button">unfold all</button> '
             '<span id="count"></span></p>')


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, parts: Sequence[str] | None = None) -> str:
    """Text in the first column, numbers in the others. ``parts``: of each row, not "" where it belongs to the last."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = []
    for index, row in enumerate(rows):
        kind = ' class="part"' if parts and parts[index] else ""
        lines.append(f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _against(groups: Sequence[GroupScore], baseline: str) -> str:
    found = [(group, entry) for group in groups for entry in group.against if entry.baseline == baseline]
    return _table(AGAINST_HEAD, [against_row(group, entry) for group, entry in found],
                  parts=[group.part for group, _ in found])


def _problems(scores: Sequence[ProblemScore], latest: Mapping[str, Mapping[str, Any]], baselines: Sequence[str]) -> str:
    """One line per problem, which unfolds. The lines are ``details``, so that this needs no script."""
    head = "".join(f'<span role="button" tabindex="0" data-column="{index}">{escape(name)}</span>'
                   for index, name in enumerate(problem_head(baselines)))
    lines = []
    for score in scores:
        keys = _sort_keys(score, baselines)
        cells = problem_row(score, baselines)
        spans = "".join(f'<span class="{_cell_class(score, index, baselines)}" data-key="{escape(str(key))}">'
                        f"{escape(cell)}</span>" for index, (cell, key) in enumerate(zip(cells, keys, strict=True)))
        lines.append(f'<details class="problem {"" if score.verified else "bad"}" data-level="{escape(score.level)}">'
                     f"<summary>{spans}</summary>{_details(score, latest[score.name])}</details>")
    columns = len(problem_head(baselines)) - 2
    return (f'<div id="problems" style="--columns: {columns}"><div class="head">{head}</div>'
            + "\n".join(lines) + "</div>")


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


def _details(score: ProblemScore, record: Mapping[str, Any]) -> str:
    result = record.get("result") or {}
    parts = [_error(record.get("error"))]
    modes = result.get("modes") or []
    for mode in modes:
        parts.append(_mode(mode, f"{mode['name']} mode" if len(modes) > 1 else ""))
    parts.append(_list(list(result.get("notes") or [])))
    stages = ", ".join(f"{name} {units.seconds(value)}" for name, value in (result.get("stages") or {}).items())
    facts = [("level", score.level), ("state", score.state), ("kind", score.kind), ("stages", stages),
             ("took", units.seconds(record["seconds"]) if record.get("seconds") is not None else ""),
             ("attempts", str(record.get("attempts") or "")),
             ("peak memory", units.memory(record["peak_memory_bytes"]) if record.get("peak_memory_bytes") else ""),
             ("device", str(record.get("device") or "")), ("emitted", str(record.get("emitted") or ""))]
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    return f'<div class="body">{"".join(parts)}<dl>{terms}</dl></div>'


def _error(error: Any) -> str:
    """What, where, why and how to mend it, of a coded error; a bug's report; any other text as it is."""
    if not error:
        return ""
    named = error if isinstance(error, Mapping) else {"what": str(error)}
    terms = "".join(f"<dt>{escape(name)}</dt><dd><pre>{escape(str(named[name]))}</pre></dd>"
                    for name in ("what", "where", "why", "fix", "report") if named.get(name))
    return f'<h3>{escape(str(named.get("code") or "Error"))}</h3><dl class="error">{terms}</dl>'


def _mode(mode: Mapping[str, Any], title: str) -> str:
    parts = [f"<h3>{escape(title)}</h3>" if title else ""]
    certificate, timing = mode.get("certificate"), mode.get("timing")
    if certificate:
        parts.append(_paragraph(certificate["sentence"], "good" if certificate["passed"] else "bad"))
        parts += [_paragraph(why, "bad") for why in certificate["why"]]
    if timing:
        parts.append(_times(timing))
    parts += [_rules(mode["rules"]), _kernels(mode["kernels"]), _kept(mode["kept"]), _work(mode)]
    return "".join(parts)


def _times(timing: Mapping[str, Any]) -> str:
    rows = []
    for name, entry in timing["entries"].items():
        ratio = timing["ratios"].get(name)
        spread = f"{units.digits(ratio['value'])}x ({units.digits(ratio['low'])} to {units.digits(ratio['high'])})"\
            if ratio else ""
        floor = timing["share_of_floor"].get(name)
        rows.append([OURS if name == CANDIDATE else name, units.seconds(entry["median"]),
                     f"{units.seconds(entry['lower_quartile'])} to {units.seconds(entry['upper_quartile'])}",
                     str(entry["repetitions"]), spread, f"{100 * floor:.3g} %" if floor is not None else ""])
    head = ("time", "median", "middle half", "runs", f"over {OURS} (95 %)", "of the limit")
    return _table(head, rows) + "".join(_paragraph(f"{name}: no time, {why}", "bad")
                                        for name, why in timing["failures"].items())


def _rules(rules: Sequence[Mapping[str, Any]]) -> str:
    if not rules:
        return ""
    items = []
    for group in rule_groups(_record(RuleUse, rule) for rule in rules):
        use, often = group.first, f", {group.count} times" if group.count > 1 else ""
        places = "".join(f"<code>{escape(place)}</code>" for place in group.places())
        items.append(f"<li><b>{escape(use.name)}</b> ({escape(use.exactness)}{often})<br>{escape(use.law)}"
                     f"<br><span class=\"dim\">where {escape(use.condition)}</span>{places}</li>")
    return f"<h4>Algebra</h4><ul>{''.join(items)}</ul>"


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    items = [f"<li><b>{escape(kernel['name'])}</b> ({escape(kernel['kind'])})<br>{escape(kernel['meaning'])}"
             + "".join(f"<code>{escape(cover)}</code>" for cover in kernel["covers"]) + "</li>" for kernel in kernels]
    return f"<h4>What the kernels do</h4><ul>{''.join(items)}</ul>" if items else ""


def _kept(kept: Sequence[Mapping[str, Any]]) -> str:
    items = []
    for why, entries in kept_by_reason(_record(Kept, entry) for entry in kept).items():
        items.append(f"<li>{escape(why)}<code>{escape(operators_in_words(entries))}</code></li>")
    return f"<h4>Stays with PyTorch</h4><ul>{''.join(items)}</ul>" if items else ""


def _record(kind: type, values: Mapping[str, Any]) -> Any:
    """The record that ``values`` were made of."""
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def _work(mode: Mapping[str, Any]) -> str:
    before, after = mode["before"], mode["after"]
    rows = [["operations", units.operations(before["operations"]), units.operations(after["operations"]),
             units.change(before["operations"], after["operations"], "fewer")],
            ["memory traffic", units.memory(before["bytes"]), units.memory(after["bytes"]),
             units.change(before["bytes"], after["bytes"])]]
    words = f": {mode['floor_words']}" if mode.get("floor_words") else ""
    return _table(("work of one forward", "before", "after", ""), rows) + _paragraph(
        f"limit of this device: {units.seconds(mode['floor_seconds'])}{words}", "dim")
