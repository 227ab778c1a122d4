"""The scores of a suite as tables: for a terminal (100 columns suffice for tables, on fewer their rows are lines;
colours are not needed) and in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kernelwright.report import units
from kernelwright.suite.scores import (
    KINDS,
    SIMPLIFIED,
    BaselineScore,
    GroupScore,
    ProblemScore,
    Speed,
    baselines_of,
    score_groups,
    score_problems,
)
from kernelwright.timing.baselines import COMPILED, EAGER, GRAPHED, MAX_AUTOTUNE, REDUCE_OVERHEAD

#: Baselines as columns call them.
SHORT = {EAGER: "eager", GRAPHED: "eager's graph", COMPILED: "compile", REDUCE_OVERHEAD: "reduce-overhead",
         MAX_AUTOTUNE: "max-autotune"}
DEFINITIONS = (
    "fast_p: share of all problems that are verified and more than p times as fast as the baseline (KernelBench's "
    "measure). mean: geometric mean of the speed-ups of the verified problems that have a measurable one. slower: "
    "beyond the noise. floor: median share of the time that the device allows. constant: the output does not depend "
    "on the inputs; eliminated: algebra removed the operators that cost most.")


def render_table(records: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Everything: what was run, the levels, every problem, and what is not verified or slower than eager.

    ``records``: as read from results.jsonl, in any order. A rich renderable.
    """
    records = list(records)
    scores = score_problems(records)
    if not scores:
        return Text("No problem has a result.")
    groups = score_groups(scores)
    tables = [_levels(groups), *(_against(groups, name) for name in baselines_of(scores)),
              Text(DEFINITIONS, style="dim"), _problems(scores)]
    parts: list[RenderableType] = [Text(headline(records), style="bold")]
    for table in tables:
        parts += [Text(""), _Fitting(table) if isinstance(table, Table) else table]
    return Group(*parts, Text(""), *(Text(line, style="yellow") for line in sentences(records, scores)))


def headline(records: Sequence[Mapping[str, Any]]) -> str:
    """Devices, versions and days of the records, in one line."""
    devices = dict.fromkeys(str(record["device"]) for record in records if record.get("device"))
    torches = dict.fromkeys(str(record["versions"]["torch"]) for record in records
                            if (record.get("versions") or {}).get("torch"))
    days = sorted({str(record["started"])[:10] for record in records if record.get("started")})
    when = [days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"] if days else []
    facts = [*devices, *(f"torch {version}" for version in torches), *when]
    return ", ".join([units.counted(len({record["problem"] for record in records}), "problem"), *facts])


def sentences(records: Sequence[Mapping[str, Any]], scores: Sequence[ProblemScore]) -> list[str]:
    """What must not be overlooked: problems slower than eager, and those without a verified result, with the reason."""
    slower = [s.name for s in scores if s.verified and EAGER in s.speeds and s.speeds[EAGER].is_slower]
    found = [f"Slower than eager beyond the noise: {', '.join(slower) or 'none'}."]
    latest = {record["problem"]: record for record in records}
    noisy = [s.name for s in scores if s.verified and latest[s.name].get("device_was_quiet") is False]
    if noisy:
        found.append(f"Measured beside other programs, on a device that was not quiet: {', '.join(noisy)}.")
    return found + [f"{s.name}: {s.state}{reason(latest[s.name])}" for s in scores if not s.verified]


def reason(record: Mapping[str, Any], most: int = 160) -> str:
    """``, KW501: what happened`` from a record's error, at most ``most`` characters of it; "" without one."""
    error = record.get("error")
    if not error:
        return ""
    fields = error if isinstance(error, Mapping) else {"what": str(error)}
    text = " ".join(str(fields.get("what", "")).split())
    code = f"{fields['code']}: " if fields.get("code") else ""
    return f", {code}{text if len(text) <= most else text[:most - 3] + '...'}"


def markdown_table(records: Iterable[Mapping[str, Any]]) -> str:
    """The same as :func:`render_table` in Markdown, without a final newline; times in milliseconds."""
    records = list(records)
    scores = score_problems(records)
    if not scores:
        return "No problem has a result."
    groups = score_groups(scores)
    lines = [f"{headline(records)}.", "", *markdown_lines(LEVEL_HEAD, [level_row(group) for group in groups])]
    baselines = baselines_of(scores)
    for baseline in baselines:
        rows = [against_row(group, entry) for group in groups if (entry := _find(group, baseline))]
        lines += ["", *markdown_lines((f"against {SHORT[baseline]}", *AGAINST_HEAD[1:]), rows)]
    lines += ["", DEFINITIONS.replace("_", "\\_"), ""]
    head, rows = problem_head(baselines), [problem_row(score, baselines) for score in scores]
    lines += markdown_lines((*head[:-2], "error", "eager's"), rows)
    return "\n".join([*lines, "", *(f"- {_escaped(line)}" for line in sentences(records, scores))])


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a cell or out of one."""
    for character in "\\|_*<`":
        text = text.replace(character, "\\" + character if character != "<" else "&lt;")
    return text


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    cells = [head, ["---"] * len(head), *([_escaped(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(row) + " |" for row in cells]


LEVEL_HEAD = ("", "problems", "verified", *KINDS, "floor")


def level_row(group: GroupScore) -> list[str]:
    return [_label(group), str(group.problems), str(group.verified),
            *(str(group.kinds.get(kind, 0)) for kind in KINDS), share(group.share_of_floor)]


AGAINST_HEAD = ("", "fast_0", "fast_1", "fast_2", "mean", "of", "slower")


def against_row(group: GroupScore, entry: BaselineScore) -> list[str]:
    mean = f"{units.digits(entry.mean)}x" if entry.mean is not None else ""
    return [_label(group), *(f"{value:.2f}" for value in entry.fast), mean, str(entry.count), str(len(entry.slower))]


def _label(group: GroupScore) -> str:
    return f"{group.name}, {group.part}" if group.part else group.name


def share(value: float | None) -> str:
    """``66 %``; "" of None."""
    return f"{100 * value:.2g} %" if value is not None and value < 1 else f"{100 * value:.0f} %" if value else ""


def milliseconds(seconds: float | None) -> str:
    """Three digits; "" of None."""
    return units.digits(seconds * 1e3) if seconds is not None else ""


def _find(group: GroupScore, baseline: str) -> BaselineScore | None:
    return next((entry for entry in group.against if entry.baseline == baseline), None)


def problem_head(baselines: Sequence[str]) -> list[str]:
    """Names of the columns of :func:`problem_row`."""
    return ["problem", "replaced", *(f"{SHORT[name]} ms" for name in baselines), "ours ms",
            *(f"x {SHORT[name]}" for name in baselines), "floor", "error", "eager's"]


def problem_row(score: ProblemScore, baselines: Sequence[str]) -> list[str]:
    """Name, replaced operators of all (a simplified problem's kind; the state of one that is not verified), times,
    speed-ups, share of the floor, errors."""
    replaced = score.kind if score.kind in SIMPLIFIED else f"{score.replaced}/{score.operators}"
    state = replaced if score.verified else score.state
    errors = [f"{value:.1e}" if value is not None else "" for value in (score.error, score.eager_error)]
    speeds = [units.digits(score.speeds[name].value) if name in score.speeds else "" for name in baselines]
    return [score.name, state, *(milliseconds(score.times.get(name)) for name in baselines), milliseconds(score.ours),
            *speeds, share(score.share_of_floor), *errors]


class _Fitting:
    """A table; where its columns do not fit the width, its rows as lines that say what each value is."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = Measurement.get(console, options.update(max_width=10_000), self.table)
        if natural.minimum <= options.max_width:
            yield self.table
            return
        first, *heads = [" ".join(str(column.header).split()) for column in self.table.columns]
        if first:
            yield Text(first, style="bold")
        for name, *values in zip(*(column.cells for column in self.table.columns), strict=True):
            said = [f"{head} {value}" if any(map(str.isdigit, value)) else value  # words speak for themselves
                    for head, value in zip(heads, map(str, values), strict=True) if value]
            lines = textwrap.wrap(", ".join(said), options.max_width, initial_indent="  ", subsequent_indent="  ",
                                  break_on_hyphens=False)
            yield Text("\n".join([str(name), *lines]))


def _levels(groups: Sequence[GroupScore]) -> Table:
    table = _table(LEVEL_HEAD)
    for group in groups:
        table.add_row(*_indented(group, level_row(group)), style="dim" if group.part else "")
    return table


def _against(groups: Sequence[GroupScore], baseline: str) -> Table:
    table = _table((f"against {SHORT[baseline]}", *AGAINST_HEAD[1:]))
    for group in groups:
        if entry := _find(group, baseline):
            table.add_row(*_indented(group, against_row(group, entry)), style="dim" if group.part else "")
    return table


def _indented(group: GroupScore, row: Sequence[str]) -> list[RenderableType]:
    return [_name(f"  {group.part}" if group.part else group.name), *row[1:]]


def _name(text: str) -> Text:
    """A cell of the first column: cut where the width does not suffice."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _problems(scores: Sequence[ProblemScore]) -> Table:
    baselines = baselines_of(scores)
    *others, own_error = problem_head(baselines)
    table = _table([*(name.replace(" ms", "\nms").replace("x ", "x\n") for name in others), f"{own_error}\nerror"],
                   tight=True)
    for level, members in groupby(scores, key=lambda score: score.level):
        table.add_row(Text(level, style="bold"))
        for score in members:
            row: list[RenderableType] = [*problem_row(score, baselines)]
            row[0] = _name(score.name.rpartition("/")[2])
            first = 3 + len(baselines)
            for index, name in enumerate(baselines, start=first):
                row[index] = Text(str(row[index]), style=_style(score.speeds.get(name)))
            if not score.verified:
                row[1] = Text(score.state, style="red")
            table.add_row(*row)
    return table


def _style(speed: Speed | None) -> str:
    if speed is None or speed.low <= 1.0 <= speed.high:
        return ""
    return "red" if speed.is_slower else "green"


def _table(head: Sequence[str], *, tight: bool = False) -> Table:
    """A table whose first column gives way where the width does not suffice. ``tight``: one blank between columns."""
    table = Table(box=None, padding=(0, 1, 0, 0) if tight else (0, 2, 0, 0), pad_edge=False, header_style="bold")
    for index, name in enumerate(head):
        # Only columns that may wrap are narrowed: the first, whose cells are cut instead.
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index > 0,
                         min_width=12 if index == 0 else None)
    return table
