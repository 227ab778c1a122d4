"""What ``kernelwright judge`` prints: verdicts, reasons, ranks, and what the verdicts rest on."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.judge.records import CandidateResult, CandidateTiming, Finding, JudgeResult
from kernelwright.judge.report.by_rules import by, differs, sentence, sets_of, word
from kernelwright.judge.report.rank import LEAST_ROUNDS, is_faster, is_slower
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.report import units
from kernelwright.report.layout import Page

#: Characters of a sentence or a line that a candidate may fill.
MOST_SENTENCE, MOST_LINE = 800, 160
#: Findings told of one candidate besides its reason; the document has all.
MOST_FINDINGS = 6
#: Characters of a name from which a table may cut it, and those that it gets in any case.
LONG_NAME, LEAST_NAME = 24, 12
#: Ties of more candidates are counted instead of listed: their ranks say it already.
MOST_LISTED = 8
#: Pairs of near-duplicates that are told.
MOST_PAIRS = 20
#: How a finding is known, as it is told. What was only read is a hint.
SOURCES = {"run": "seen", "build": "said", "clock": "measured", "read": "hint"}
_COLOURS = {"OK": "green", "CHEAT": "red", "WRONG": "red", "CRASH": "red", "BUILD": "red"}


def render_text(result: JudgeResult, *, colour: bool = False, width: int = 100) -> str:
    """The result as text of at most ``width`` columns where lines can be broken, no final newline."""
    page = Page(colour, width)
    names = _labels([candidate.file for candidate in result.candidates])
    _headline(page, result)
    _verdicts(page, result.candidates, names)
    _reasons(page, result.candidates, names)
    _by_rules(page, result.candidates, names)
    _ranking(page, result, names)
    _basis(page, result)
    return page.text()


def short_names(files: Sequence[str]) -> dict[str, str]:
    """Each file without the folder that all of them have in common."""
    folders = {os.path.dirname(file) for file in files}
    try:
        common = os.path.commonpath(folders) if folders else ""
    except ValueError:  # absolute and relative paths, or two drives
        common = ""
    return {file: clean(os.path.relpath(file, common) if common else file, MOST_LINE) for file in files}


def _labels(files: Sequence[str]) -> dict[str, str]:
    """How each file is called: its short name, with its number before it where a table would have to cut some."""
    names = short_names(files)
    if max(map(len, names.values()), default=0) <= LONG_NAME:
        return names
    return {file: f"{number}: {name}" for number, (file, name) in enumerate(names.items(), start=1)}


def clean(text: object, most: int = MOST_SENTENCE) -> str:
    """Text of others on one line, without what would move a terminal's cursor, at most ``most`` characters of it."""
    plain = " ".join(str(text).split())
    plain = re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]|[\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]",
                   lambda found: ascii(found.group())[1:-1], plain)
    return plain if len(plain) <= most else plain[:most - 3] + "..."


def _headline(page: Page, result: JudgeResult) -> None:
    versions = [f"{name} {version}" for name, version in result.versions.items() if name in ("torch", "cuda")]
    where = ", ".join([result.device, *versions])
    page.paragraph(f"{clean(result.problem)}: {units.counted(len(result.candidates), 'candidate')} on {where}",
                   "bold", indent=0)
    counts = Counter(candidate.verdict for candidate in result.candidates)
    order = list(VERDICTS)
    page.paragraph(", ".join(f"{counts[code]} {code}" for code in sorted(counts, key=order.index)))
    if result.unfit:
        page.paragraph("The judge failed its own self-test in this run: no verdict of it counts.", "red")


def _verdicts(page: Page, candidates: Sequence[CandidateResult], names: dict[str, str]) -> None:
    """One line each: verdict, error beside eager's, precision, time, speed-up, shares."""
    head, cells = ["verdict"], [[c.verdict] for c in candidates]
    if any(c.error for c in candidates):
        head += ["error", "eager's"]
        for row, candidate in zip(cells, candidates):
            row += _errors(candidate)
    if any(c.precision for c in candidates):
        head.append("type")
        for row, candidate in zip(cells, candidates):
            row.append(candidate.precision or "")
    if any(c.timing for c in candidates):
        head += ["time", "speed-up", "floor", "own"]
        for row, candidate in zip(cells, candidates):
            row += _measured(candidate.timing)
    page.line()
    _named_table(page, [names[c.file] for c in candidates], cells, head,
                 [_colour(c) for c in candidates])
    legend = [("error", "error: rms of the error over rms of the float64 result, at worst."),
              ("type", "type: the precision that the results show."),
              ("floor", "speed-up: over eager; floor: share of the speed that the device allows; own: share of the "
                        "time in the candidate's own kernels.")]
    if words := [text for column, text in legend if column in head]:
        page.paragraph(" ".join(words), "dim")


def _colour(candidate: CandidateResult) -> str:
    return _COLOURS.get(VERDICTS[candidate.verdict].family, "yellow")


def _errors(candidate: CandidateResult) -> list[str]:
    error = candidate.error
    return [f"{error[key]:.1e}" for key in ("candidate", "eager")] if error else ["", ""]


def _measured(timing: CandidateTiming | None) -> list[str]:
    if timing is None:
        return ["", "", "", ""]
    speed = timing.speedup
    over = "?" if speed is None else "tie" if not is_faster(speed) and not is_slower(speed) else \
        f"{units.digits(speed.value)}x"
    return [units.seconds(timing.seconds), over, _share(timing.share_of_floor), _share(timing.own_share)]


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _named_table(page: Page, names: Sequence[str], cells: Sequence[list[str]], head: Sequence[str],
                 styles: Sequence[str] = ()) -> None:
    """A table whose first column, the names, is cut in its middle where the width does not suffice."""
    columns = list(zip(head, *cells))
    others = sum(max(map(len, column)) + 2 for column in columns)
    room = max(LEAST_NAME, page.width - 2 - others)
    page.table([[_cut(name, room), *row] for name, row in zip(names, cells)], head=("candidate", *head), styles=styles)


def _cut(text: str, room: int) -> str:
    """At most ``room`` characters, from the beginning, where a number stands, and from the end."""
    if len(text) <= room:
        return text
    end = min((room - 3) * 2 // 3, room - 8)
    return text[:room - 3 - end] + "..." + text[-end:]


def _reasons(page: Page, candidates: Sequence[CandidateResult], names: dict[str, str]) -> None:
    """Why each candidate did not pass, where to look, and what would mend it; of those that passed, their limits."""
    refused = [c for c in candidates if not VERDICTS[c.verdict].passed]
    limited = [c for c in candidates if VERDICTS[c.verdict].passed and (c.limits or _note(c))]
    if refused:
        page.heading("What is wrong, and what would fix it")
    for candidate in refused:
        page.paragraph(f"{names[candidate.file]}: {candidate.verdict}", _colour(candidate), hanging=4)
        page.paragraph(clean(candidate.reason), indent=4)
        told = clean(candidate.reason).lower()  # which may say first on which inputs the finding shows
        same = [f for f in candidate.findings if told.endswith(clean(f.sentence).lower())]
        for finding in same[:1]:
            _place(page, finding, candidate.file)
        fix = candidate.fix or (same[0].fix if same else "")
        if fix:
            page.paragraph(clean(fix), indent=4, first="fix: ")
        for finding in [f for f in candidate.findings if f not in same][:MOST_FINDINGS]:
            page.paragraph(clean(finding.sentence), indent=4, first=f"{SOURCES.get(finding.source, 'seen')}: ")
            _place(page, finding, candidate.file)
            if finding.fix and clean(finding.fix) != clean(fix):
                page.paragraph(clean(finding.fix), indent=6, first="fix: ")
        if candidate.untried:
            page.paragraph(clean(candidate.untried), "dim", indent=4, first="not tried: ")
    if limited:
        page.heading("Right, with limits")
    for candidate in limited:
        page.paragraph(f"{names[candidate.file]}: {candidate.verdict}", _colour(candidate), hanging=4)
        for limit in [*candidate.limits, *_note(candidate)]:
            page.paragraph(clean(limit), indent=4, hanging=2)


def _by_rules(page: Page, candidates: Sequence[CandidateResult], names: dict[str, str]) -> None:
    """The verdicts by the rules of others beside ours, and where they disagree, each candidate's sentence."""
    sets = sets_of(candidates)
    if not sets:
        return
    page.heading("By the rules of others")
    _named_table(page, [names[c.file] for c in candidates],
                 [[c.verdict, *(word(by(c, rules)) for rules in sets)] for c in candidates], ("ours", *sets.values()),
                 [_colour(c) for c in candidates])
    for candidate in candidates:
        for found in candidate.by_rules:
            if differs(candidate, found) or found.right is None:
                page.paragraph(clean(sentence(candidate, found)), first=f"{names[candidate.file]}: ", hanging=4)


def _note(candidate: CandidateResult) -> list[str]:
    return [candidate.timing.note] if candidate.timing is not None and candidate.timing.note else []


def _place(page: Page, finding: Finding, file: str) -> None:
    """``file:line: text``, where the finding has a place; the file as it was given, so that it can be opened."""
    if finding.line is not None:
        text = f"{clean(file, MOST_LINE)}:{finding.line}: {clean(finding.text, MOST_LINE)}"
        page.paragraph(text.removesuffix(": "), "cyan", indent=6, hanging=4)


def _ranking(page: Page, result: JudgeResult, names: dict[str, str]) -> None:
    """Each class with its ranks; candidates that cannot be told apart share one."""
    by_file = {candidate.file: candidate for candidate in result.candidates}
    scored = any(c.timing is not None and c.timing.sol_score is not None for c in result.candidates)
    for name, groups in result.ranking.items():
        page.heading(f"Ranking: {name}")
        rows, labels, styles = [], [], []
        for group in groups:
            for file in group:
                candidate = by_file[file]
                if candidate.timing is None:
                    continue
                labels.append(names[file])
                rows.append([f"{candidate.rank}{'=' if len(group) > 1 else ''}", *with_intervals(candidate.timing),
                             *([_score(candidate.timing)] if scored else [])])
                styles.append("green" if candidate.rank == 1 else "")
        _named_table(page, labels, rows, ("rank", "time (95 %)", "over eager (95 %)", *(["SOL"] if scored else [])),
                     styles)
        for group in groups:
            if len(group) > 1:
                listed = ", ".join(names[file] for file in group) if len(group) <= MOST_LISTED else \
                    units.counted(len(group), "candidate")
                page.paragraph(f"{by_file[group[0]].rank}= {listed} (cannot be told apart)", hanging=4)
        timed = [timing for group in groups for file in group if (timing := by_file[file].timing)]
        few = sum(len(timing.samples) < LEAST_ROUNDS for timing in timed)
        if few and len(timed) > 1:
            page.paragraph(f"{few} of {len(timed)} were timed in fewer than {LEAST_ROUNDS} rounds, and so are not "
                           "shown to be slower than any other: a longer --effort ranks them.")
    if scored:
        page.paragraph("SOL: SOL-ExecBench's score with eager as its baseline, which has 0.5; 1 is the least time that "
                       "the device allows.", "dim")
    if result.baseline is not None and result.ranking:
        page.paragraph(f"eager itself: {with_intervals(result.baseline)[0]}", "dim")
    passed = [candidate for candidate in result.candidates if VERDICTS[candidate.verdict].passed]
    if passed and not result.ranking:
        page.heading("Ranking")
        page.paragraph("None: no candidate was timed.")
    _shapes(page, passed, names)
    _sanitized(page, passed, names)
    _alike(page, result, names)


def _shapes(page: Page, passed: Sequence[CandidateResult], names: dict[str, str]) -> None:
    """At how many of the tried shapes those are right that passed."""
    tried = [c for c in passed if len(c.shapes) > 1]
    if tried:
        page.paragraph("Right at so many of the shapes that were tried: " + ", ".join(
            f"{names[c.file]} {sum(s.right for s in c.shapes)} of {len(c.shapes)}" for c in tried) + ".", hanging=4)


def _sanitized(page: Page, passed: Sequence[CandidateResult], names: dict[str, str]) -> None:
    """What compute-sanitizer says of those that passed: tools with the same outcome together."""
    lines = []
    for candidate in passed:
        said = dict[str, list[str]]()
        for run in candidate.sanitizer:
            said.setdefault(run.outcome if run.outcome == "clean" else f"{run.outcome} ({clean(run.words, MOST_LINE)})",
                            []).append(run.tool)
        if said:
            words = "; ".join(f"{', '.join(tools)} {outcome}" for outcome, tools in said.items())
            lines.append(f"{names[candidate.file]}: {words}")
    if lines:
        page.heading("compute-sanitizer")
    for line in lines:
        page.paragraph(line, hanging=4)


def _alike(page: Page, result: JudgeResult, names: dict[str, str]) -> None:
    """Candidates whose texts are near to each other's, the model's or known ones; each pair once."""
    told: set[frozenset[str]] = set()
    lines = []
    for candidate in result.candidates:
        for found in candidate.alike:
            pair = frozenset((candidate.file, found.file))
            if pair not in told:
                told.add(pair)
                other = names.get(found.file) or clean(found.file, MOST_LINE)
                lines.append(f"{names[candidate.file]} {found.words} {other}")
    if lines:
        page.heading("Near-duplicates")
    for line in lines[:MOST_PAIRS]:
        page.paragraph(line, hanging=4)
    if len(lines) > MOST_PAIRS:
        page.paragraph(f"and {len(lines) - MOST_PAIRS} more pairs, which the document has", "dim")


def _score(timing: CandidateTiming) -> str:
    return "" if timing.sol_score is None else f"{timing.sol_score:.2f}"


def with_intervals(timing: CandidateTiming) -> list[str]:
    """A time and what it is over eager, each with its interval; of few rounds their number, as they have none."""
    low, high = timing.interval
    interval = f"{units.seconds(low)} to {units.seconds(high)}"
    if len(timing.samples) < LEAST_ROUNDS:
        interval = f"of {units.counted(len(timing.samples), 'round')}"
    speed = timing.speedup
    over = "too few rounds to say"
    if speed is not None:
        tie = "" if is_faster(speed) or is_slower(speed) else " tie"
        over = f"{units.digits(speed.value)}x ({units.digits(speed.low)} to {units.digits(speed.high)}){tie}"
    return [f"{units.seconds(timing.seconds)} ({interval})", over]


def _basis(page: Page, result: JudgeResult) -> None:
    """What the verdicts rest on: the problem's profile, the self-test, the isolation, the clocks, the seed."""
    page.heading("What this rests on")
    nothing = ["nothing about it is out of the ordinary"] if result.problem_profile else []
    for label, words in (("problem", words_of(result.problem_profile) or nothing),
                         ("self-test", words_of(result.selftest)),
                         ("isolation", [result.isolation] if result.isolation else []),
                         ("device", words_of(result.environment))):
        if words:
            page.paragraph(clean(" ".join(words)), first=f"{label}: ", hanging=4)
    page.paragraph(f"seed: {result.seed}; `--seed {result.seed}` draws the same inputs again", hanging=4)
    page.paragraph(f"took: {units.seconds(result.seconds)}")


def words_of(document: Mapping[str, Any]) -> list[str]:
    """The sentences of a problem's profile, a self-test or an environment: its ``words``, one text or several."""
    words = document.get("words") or ()
    return [words] if isinstance(words, str) else [str(word) for word in words]
