"""The verdicts on a set of candidates as one HTML page that loads nothing from elsewhere and needs no script.

What is said is gathered here as plain data; how it is marked up stands in ``page.html.jinja`` and ``page.css``, with
the parts that reports of models have (:mod:`kernelwright.report.html`). Everything that a candidate had a hand in (its
text, its name, messages, lines) is escaped, and what would reorder or hide text on a screen is written out. The page
itself forbids scripts and whatever is not in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.judge.records import CandidateResult, Finding, JudgeResult
from kernelwright.judge.report.by_rules import by, sentence, sets_of, word
from kernelwright.judge.report.rank import LEAST_ROUNDS, is_faster, is_slower
from kernelwright.judge.report.text import SOURCES, short_names, with_intervals, words_of
from kernelwright.judge.rules import OTHERS
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.report import units
from kernelwright.report.html import accuracy
from kernelwright.report.html.environment import templates

#: Characters of a candidate's text that are shown, and lines of it that are numbered.
MOST_TEXT, MOST_LINES = 400_000, 6_000
_TEMPLATES = templates(Path(__file__).parent)
_SIGNS = {"OK": "good", "CHEAT": "bad", "WRONG": "bad", "CRASH": "bad", "BUILD": "bad"}
#: What no screen shows as it stands: control characters, and those that hide or turn what follows.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
                     r"\ud800-\udfff\U000e0000-\U000e007f]")
_FAMILIES = (("OK", "right", "right"), ("WRONG", "gives other results", "give other results"),
             ("CHEAT", "is refused for its conduct", "are refused for their conduct"),
             ("CRASH", "does not run", "do not run"), ("BUILD", "does not build", "do not build"),
             ("PROBLEM", "is on a problem that tells nothing", "are on a problem that tells nothing"),
             ("JUDGE", "could not be judged", "could not be judged"))


def render_page(result: JudgeResult, texts: Mapping[str, str] | None = None) -> str:
    """The page as text. ``texts``: of the candidates, by file; without it they are read. The same result and the same
    texts give the same page."""
    texts = texts if texts is not None else {c.file: _read(Path(c.file)) for c in result.candidates}
    names = short_names([candidate.file for candidate in result.candidates])
    sets = sets_of(result.candidates)
    timed = sorted((c for c in result.candidates
                    if c.timing is not None and len(c.timing.samples) >= LEAST_ROUNDS), key=_seconds)
    page = _TEMPLATES.get_template("page.html.jinja").render(
        title=f"{result.problem}: {units.counted(len(result.candidates), 'candidate')} judged",
        headline=headline(result), unfit=result.unfit, titles=sets.values(), facts=_facts(result),
        TRIAL_HEAD=accuracy.TRIAL_HEAD, rows=[_row(candidate, number, names[candidate.file], sets)
              for number, candidate in enumerate(result.candidates, start=1)],
        bars=_bars(result, timed, names), ranking=_ranking(result, names), pairs=_pairs(result, names),
        rules=[{"rules": OTHERS[rules], "sentences": [
            (names[c.file], sentence(c, found)) for c in result.candidates if (found := by(c, rules)) is not None]}
            for rules in sets],
        candidates=[_candidate(candidate, number, names[candidate.file], texts.get(candidate.file, ""))
                    for number, candidate in enumerate(result.candidates, start=1)],
        basis=[(label, words) for label, words in (
            ("problem", words_of(result.problem_profile)), ("self-test", words_of(result.selftest)),
            ("isolation", [result.isolation] if result.isolation else []),
            ("device and load", words_of(result.environment))) if words],
        environment=[(name, str(value)) for name, value in result.environment.items() if name != "words"],
        settings=[(name, str(value)) for name, value in result.settings.items()])
    return _UNSEEN.sub(lambda found: ascii(found.group())[1:-1], page)


def headline(result: JudgeResult) -> str:
    """What came of it, in a sentence or two."""
    if result.unfit:
        return "The judge failed its own self-test in this run: no verdict of it counts."
    families = Counter(VERDICTS[c.verdict].family for c in result.candidates)
    limited = sum(c.verdict == "OK-BUT" for c in result.candidates)
    said = []
    for family, one, several in _FAMILIES:
        count = families[family]
        if count:
            also = f", {limited} of them with limits" if family == "OK" and limited else ""
            verb = f"{'is' if count == 1 else 'are'} {one}" if family == "OK" else one if count == 1 else several
            said.append(f"{count} {verb}{also}")
    said = said or ["there was none"]
    text = f"Of {units.counted(len(result.candidates), 'candidate')} {'; '.join(said)}."
    timed = sorted((c for c in result.candidates
                    if c.timing is not None and len(c.timing.samples) >= LEAST_ROUNDS), key=_seconds)
    if timed and timed[0].timing is not None:
        speed = timed[0].timing.speedup
        over = "" if speed is None else ", no different from eager" if not is_faster(speed) and not is_slower(speed) \
            else f", {units.digits(speed.value)}x as fast as eager"
        name = short_names([c.file for c in result.candidates])[timed[0].file]
        tied = sum(c.rank == timed[0].rank and c.rank_class == timed[0].rank_class for c in timed)
        with_it = f", and {units.counted(tied - 1, 'other')} cannot be told from it" if tied > 1 else ""
        text += f" The fastest is {name}: {units.seconds(timed[0].timing.seconds)}{over}{with_it}."
    return text


def _seconds(candidate: CandidateResult) -> tuple[float, str]:
    return candidate.timing.seconds if candidate.timing is not None else float("inf"), candidate.file


def _sign(candidate: CandidateResult) -> str:
    return "mind" if candidate.verdict == "OK-BUT" else _SIGNS.get(VERDICTS[candidate.verdict].family, "mind")


def _facts(result: JudgeResult) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return [("problem", result.path), ("device", result.device), ("versions", versions),
            ("seed", f"{result.seed}: --seed {result.seed} draws the same inputs again"),
            ("took", units.seconds(result.seconds))]


def _row(candidate: CandidateResult, number: int, name: str, sets: Mapping[str, str]) -> dict[str, Any]:
    """A candidate's line in the table of all."""
    error, timing = candidate.error, candidate.timing
    rank = f"{candidate.rank} of {candidate.rank_class}" if candidate.rank is not None else ""
    time, speed = with_intervals(timing) if timing is not None else ("", "")
    cells = [("time (95 %)", time), ("over eager (95 %)", speed), ("rank", rank)]
    if timing is not None:
        cells += [("own kernels", _share(timing.own_share, "not measured")),
                  ("of the floor", _share(timing.share_of_floor, "not known")),
                  ("SOL", "" if timing.sol_score is None else f"{timing.sol_score:.2f}")]
    else:
        cells += [("own kernels", ""), ("of the floor", ""), ("SOL", "")]
    cells += [("error / eager's", f"{error['candidate']:.1e} / {error['eager']:.1e}" if error else ""),
              ("type", candidate.precision or ""),
              ("shapes", f"{sum(s.right for s in candidate.shapes)} of {len(candidate.shapes)}"
               if candidate.shapes else "")]
    return {"number": number, "name": name, "verdict": candidate.verdict, "sign": _sign(candidate),
            "rules": [(title, word(by(candidate, rules))) for rules, title in sets.items()], "cells": cells,
            "reason": candidate.reason, "fix": candidate.fix}


def _share(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{100 * value:.0f} %"


def _bars(result: JudgeResult, timed: Sequence[CandidateResult], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Times as bars, eager's below them, with the 95 % interval under each."""
    entries = [(names[c.file], c.timing, True) for c in timed]
    entries += [("eager", result.baseline, False)] if result.baseline is not None and timed else []
    longest = max((t.interval[1] for _, t, _ in entries if t is not None), default=0.0) or 1.0
    return [{"name": name, "ours": ours, "cells": [units.seconds(t.seconds)],
             "median": f"{100 * t.seconds / longest:.2f}", "left": f"{100 * t.interval[0] / longest:.2f}",
             "width": f"{100 * (t.interval[1] - t.interval[0]) / longest:.2f}"}
            for name, t, ours in entries if t is not None]


def _ranking(result: JudgeResult, names: Mapping[str, str]) -> list[dict[str, Any]]:
    by_file = {candidate.file: candidate for candidate in result.candidates}
    return [{"name": name, "rows": [[f"{by_file[file].rank}{'=' if len(group) > 1 else ''}", names[file],
                                     *with_intervals(timing)] for group in groups for file in group
                                    if (timing := by_file[file].timing) is not None]}
            for name, groups in result.ranking.items()]


def _pairs(result: JudgeResult, names: Mapping[str, str]) -> list[str]:
    """Near-duplicates, each pair once."""
    told: dict[frozenset[str], str] = {}
    for candidate in result.candidates:
        for found in candidate.alike:
            told.setdefault(frozenset((candidate.file, found.file)), f"{names[candidate.file]} {found.words} "
                            f"{names.get(found.file, found.file)}.")
    return list(told.values())


def _candidate(candidate: CandidateResult, number: int, name: str, text: str) -> dict[str, Any]:
    """A candidate's own section."""
    shown = text[:MOST_TEXT]
    lines = shown.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n") if shown.strip() else []
    found = accuracy.accuracy(candidate.certificate) if candidate.certificate is not None else None
    stages = ", ".join(f"{stage} {units.seconds(seconds)}" for stage, seconds in candidate.seconds.items())
    timing = candidate.timing
    times = [("inner clock", units.seconds(timing.inner)),
             ("outer clock", "none" if timing.outer is None else units.seconds(timing.outer)),
             ("rounds", str(len(timing.samples))), ("floor", "not known" if timing.floor_seconds is None else
                                                    units.seconds(timing.floor_seconds)),
             ("launched as a graph", "yes" if timing.graph else "no"),
             ("limits of the measurement", timing.note)] if timing is not None else []
    return {"number": number, "name": name, "file": candidate.file, "verdict": candidate.verdict,
            "meaning": VERDICTS[candidate.verdict].meaning, "sign": _sign(candidate), "reason": candidate.reason,
            "fix": candidate.fix, "limits": candidate.limits, "prompt": candidate.prompt,
            "findings": [_finding(f) for f in candidate.findings], "accuracy": found,
            "rules": [sentence(candidate, it) for it in candidate.by_rules],
            "shapes": [f"{shape.words}: {'right' if shape.right else 'wrong'}" for shape in candidate.shapes],
            "sanitizer": [f"{run.tool}: {run.outcome}, {run.words}" for run in candidate.sanitizer],
            "alike": [(a.words, a.file) for a in candidate.alike], "times": [t for t in times if t[1]],
            "facts": [t for t in (("seconds by stage", stages), ("isolation", candidate.isolation)) if t[1]],
            "lines": lines[:MOST_LINES], "more": len(text) - len(shown), "more_lines": max(0, len(lines) - MOST_LINES)}


def _finding(finding: Finding) -> dict[str, Any]:
    shown = {key: value for key, value in finding.evidence.items() if key in (
        "index", "expected", "got", "float64", "message", "factor", "share") and value is not None}
    return {"how": SOURCES.get(finding.source, "seen"), "kind": finding.kind, "sentence": finding.sentence,
            "fix": finding.fix, "line": finding.line, "text": finding.text,
            "evidence": "; ".join(f"{key} {str(value)[:300]}" for key, value in shown.items())}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:  # it went away while it was judged
        return ""
