"""Sets of a suite's problems that share what they are bound by, each problem against the best of its baselines.

A set is written as ``NAME=LEVEL/NUMBERS``, as in ``matrix products=level1/1-3,6-11``: problems of a level by the number
with which their names begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from kernelwright.report import units
from kernelwright.suite.scores import BASELINES, ProblemScore, Speed, score_problems
from kernelwright.suite.table import SHORT, headline, markdown_lines, milliseconds, share
from kernelwright.timing.baselines import EAGER

_WRITTEN = re.compile(r"\s*(?P<name>[^=]+?)\s*=\s*(?P<level>[^/=]+)/(?P<numbers>\d+(-\d+)?(,\d+(-\d+)?)*)\s*")


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems of one level, by number."""

    name: str
    level: str
    numbers: tuple[int, ...]

    def holds(self, score: ProblemScore) -> bool:
        """Whether a problem is one of the set's."""
        number = re.match(r"\d+", score.name.rpartition("/")[2])
        return score.level == self.level and number is not None and int(number[0]) in self.numbers


def parse_set(text: str) -> ProblemSet:
    """The set that ``NAME=LEVEL/1-3,6`` says. Raises ValueError."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ValueError(f"a set is written as NAME=LEVEL/1-3,6, not as {text!r}")
    numbers: list[int] = []
    for part in found["numbers"].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return ProblemSet(found["name"], found["level"], tuple(dict.fromkeys(numbers)))


def best_baseline(score: ProblemScore) -> tuple[str, Speed] | None:
    """The fastest baseline of a problem and the speed-up over it; None without times."""
    timed = [name for name in BASELINES if name in score.times and name in score.speeds]
    name = min(timed, key=score.times.__getitem__, default=None)
    return (name, score.speeds[name]) if name is not None else None


def sets_table(records: Iterable[Mapping[str, Any]], sets: Sequence[ProblemSet]) -> str:
    """Markdown: a row for each set, then one for each problem; without a final newline.

    A problem counts with its speed-up over the fastest of its baselines; where nothing is replaced that is at most 1.
    """
    records = list(records)
    scores = score_problems(records)
    rows, details = [], []
    for one in sets:
        members = [score for score in scores if one.holds(score)]
        rows.append(_set_row(one, members))
        details += ["", f"**{one.name}**", "", *markdown_lines(DETAIL_HEAD, [_detail_row(score) for score in members])]
    return "\n".join([f"{headline(records)}.", "", *markdown_lines(SET_HEAD, rows), *details])


SET_HEAD = ("set", "problems", "verified", "geometric mean over the best baseline", "least", "slower", "floor",
            "less accurate than eager")
DETAIL_HEAD = ("problem", "replaced", "eager ms", "best baseline", "its ms", "ours ms", "speed-up", "95 %", "TFLOP/s",
               "floor", "error", "eager's")


def _set_row(one: ProblemSet, members: Sequence[ProblemScore]) -> list[str]:
    good = [score for score in members if score.verified]
    best = {score.name: found[1] for score in good if (found := best_baseline(score)) is not None}
    shares = [score.share_of_floor for score in good if score.share_of_floor is not None]
    worse = [score for score in good if score.error is not None and score.eager_error is not None
             and score.error > score.eager_error]
    values = [speed.value for speed in best.values()]
    return [one.name, f"{len(members)} of {len(one.numbers)}", str(len(good)),
            f"{units.digits(geometric_mean(values))}x" if values else "", f"{units.digits(min(values))}x" if values
            else "", str(sum(speed.is_slower for speed in best.values())), share(median(shares)) if shares else "",
            str(len(worse))]


def _detail_row(score: ProblemScore) -> list[str]:
    found = best_baseline(score) if score.verified else None
    name, speed = found if found is not None else ("", None)
    rate = f"{score.operations / score.ours / 1e12:.3g}" if score.operations and score.ours else ""
    return [score.name, f"{score.replaced}/{score.operators}" if score.verified else score.state,
            milliseconds(score.times.get(EAGER)), SHORT.get(name, ""), milliseconds(score.times.get(name)),
            milliseconds(score.ours), units.digits(speed.value) if speed else "",
            f"{units.digits(speed.low)} to {units.digits(speed.high)}" if speed else "", rate,
            share(score.share_of_floor), *(f"{value:.1e}" if value is not None else ""
                                           for value in (score.error, score.eager_error))]
