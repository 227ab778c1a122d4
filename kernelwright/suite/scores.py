"""From the records of a suite to scores: per problem, per level, and of all.

A problem counts in the mode in which its model is constructed, the first of its result. Definitions:

speed-up: time of the baseline over ours, medians; above 1 ours is faster. Where the file is the model, ours *is* eager:
    1 exactly against eager, and the baseline's time over eager's against the others, at most 1: a file without kernels
    wins against nobody. A speed-up that is not measurable (`timing/speedup.py`) is none.
fast_p: share of **all** problems whose result is verified and whose speed-up is above p (Ouyang et al. 2025,
    "KernelBench: Can LLMs Write Efficient GPU Kernels?"); fast_0 is the share that is verified. A problem without
    a time of ours or of the baseline counts as 0 for p > 0.
geometric mean: of the speed-ups of verified problems that have that baseline; their number stands beside it.
slower: verified, and even the upper end of the speed-up's 95 % interval is below 1.
share of the floor: the time that no version of the rewritten program can beat on the device, over our median.
kind: "constant" (the output does not depend on the inputs) and "eliminated" (algebra removed the operators that cost
    most) say more about the problem than about kernels, so that every group is also scored without them; "kernels"
    (some operators are replaced); "graph" (none, and PyTorch's calls are launched as one CUDA graph); "original" (the
    file is the model itself); "" (no result).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from kernelwright.names import natural
from kernelwright.suite.results import VERIFIED
from kernelwright.timing.baselines import CANDIDATE, COMPILED, EAGER, GRAPHED, MAX_AUTOTUNE, REDUCE_OVERHEAD
from kernelwright.timing.speedup import FEWEST_PAIRS, UNKNOWN, is_wide, judged
from kernelwright.timing.statistics import Ratio

BASELINES = (EAGER, GRAPHED, COMPILED, REDUCE_OVERHEAD, MAX_AUTOTUNE)
KERNELS, GRAPH_ALONE, ORIGINAL, CONSTANT, ELIMINATED = "kernels", "graph", "original", "constant", "eliminated"
KINDS = (KERNELS, GRAPH_ALONE, ORIGINAL, CONSTANT, ELIMINATED)
#: Kinds whose speed is due to the problem rather than to kernels.
SIMPLIFIED = (CONSTANT, ELIMINATED)


@dataclass(frozen=True, slots=True)
class Speed:
    """A speed-up with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_slower(self) -> bool:
        """Slower beyond the noise."""
        return self.high < 1.0


@dataclass(frozen=True, slots=True)
class ProblemScore:
    """One problem. Times are medians in seconds, keyed by BASELINES; what was not measured is missing or None."""

    name: str
    level: str
    state: str
    kind: str
    operators: int
    """Captured operators that compute something."""
    replaced: int
    times: Mapping[str, float]
    ours: float | None
    """Seconds of ModelNew; eager's where that is the model itself."""
    speeds: Mapping[str, Speed]
    share_of_floor: float | None
    error: float | None
    """Worst error of ours against float64 (rms of the error / rms of the output); None where nothing was checked."""
    eager_error: float | None
    operations: float | None = None
    """Additions and multiplications of the program that algebra left."""

    @property
    def verified(self) -> bool:
        """Whether there is a result, and it passed its checks or is the original."""
        return self.state == VERIFIED


@dataclass(frozen=True, slots=True)
class BaselineScore:
    """A group of problems against one baseline."""

    baseline: str
    fast: tuple[float, float, float]
    """fast_0, fast_1 and fast_2."""
    mean: float | None
    """Geometric mean of the speed-ups; None of none."""
    count: int
    """Verified problems with this baseline: those of the mean."""
    slower: tuple[str, ...]
    """Names of problems that are slower beyond the noise."""


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Problems of one level or of all, or those of them of some kinds."""

    name: str
    part: str
    """"" for the whole group; "without constant and eliminated", "constant" or "eliminated" for a part."""
    problems: int
    verified: int
    states: Mapping[str, int]
    kinds: Mapping[str, int]
    """Verified problems by kind."""
    against: tuple[BaselineScore, ...]
    """In the order of BASELINES, those that any problem was timed against."""
    share_of_floor: float | None
    """Median over the verified problems with a time."""


def score_problems(records: Iterable[Mapping[str, Any]]) -> tuple[ProblemScore, ...]:
    """Scores in the natural order of names; of several records of one problem the last counts."""
    latest = {record["problem"]: record for record in records}
    return tuple(score_problem(latest[name]) for name in sorted(latest, key=natural))


def score_problem(record: Mapping[str, Any]) -> ProblemScore:
    """The score of one record. A result whose kernels have no passed certificate is not verified, whatever it says."""
    modes = (record.get("result") or {}).get("modes") or []
    state = record["state"]
    if state == VERIFIED and (record.get("result") is None or not all(_is_checked(mode) for mode in modes)):
        state = "failed"
    mode = modes[0] if modes else {}
    kind = ("" if record.get("result") is None else mode.get("simplification")
            or (KERNELS if mode.get("kernels") else GRAPH_ALONE if mode.get("launched") else ORIGINAL))
    entries = (mode.get("timing") or {}).get("entries", {})
    ours = entries.get(EAGER if kind == ORIGINAL else CANDIDATE)
    floor, certificate = mode.get("floor_seconds"), mode.get("certificate") or {}
    checked = certificate if kind != ORIGINAL else {}
    return ProblemScore(
        name=record["problem"], level=str(record["level"]), state=state, kind=kind,
        operators=mode.get("operators", 0), replaced=mode.get("replaced", 0),
        times={name: entries[name]["median"] for name in BASELINES if name in entries},
        ours=ours["median"] if ours else None, speeds=_speeds(mode, kind, entries),
        share_of_floor=floor / ours["median"] if ours and floor is not None and not ours.get("busy") else None,
        error=checked.get("candidate_error"), eager_error=checked.get("eager_error"),
        operations=(mode.get("after") or {}).get("operations"))


def _is_checked(mode: Mapping[str, Any]) -> bool:
    certificate = mode.get("certificate")
    return not (mode["kernels"] or mode.get("launched")) or bool(certificate and certificate["passed"])


def _speeds(mode: Mapping[str, Any], kind: str, entries: Mapping[str, Any]) -> dict[str, Speed]:
    """Speed-ups by baseline.

    Where ours is eager, the interval is that of the quotient of both medians' intervals: wider than one of paired
    rounds, which a record does not keep.
    """
    if kind == ORIGINAL:
        own = entries.get(EAGER)
        others = {name: entry for name, entry in entries.items() if name in BASELINES[1:]}
        speeds = {name: Speed(entry["median"] / own["median"], entry["interval"][0] / own["interval"][1],
                              entry["interval"][1] / own["interval"][0])
                  for name, entry in others.items() if own and not (own.get("busy") or entry.get("busy"))}
        return {EAGER: Speed(1.0, 1.0, 1.0)} | {
            name: Speed(min(1.0, found.value), min(1.0, found.low), min(1.0, found.high))
            for name, found in speeds.items() if not is_wide(found.low, found.high)}
    found = (mode.get("timing") or {}).get("ratios", {})
    return {name: Speed(found[name]["value"], found[name]["low"], found[name]["high"])
            for name in BASELINES if name in found and holds(name, found[name], entries)}


def holds(name: str, found: Mapping[str, Any], entries: Mapping[str, Any]) -> bool:
    """Whether a ratio of a record is a number to go by; records of earlier versions do not tell all of it."""
    baseline, own = entries.get(name, {}), entries.get(CANDIDATE, {})
    rows = [entry.get("back_to_back_seconds") for entry in (baseline, own)]
    told = Ratio(name, CANDIDATE, found["value"], found["low"], found["high"], found.get("pairs", FEWEST_PAIRS))
    return judged(told, rows[0] / rows[1] if all(rows) else None,
                  bool(baseline.get("busy") or own.get("busy")))[0] != UNKNOWN


def baselines_of(scores: Sequence[ProblemScore]) -> list[str]:
    """The BASELINES that any of the problems was timed against."""
    return [name for name in BASELINES if any(name in score.speeds for score in scores)]


def score_groups(scores: Sequence[ProblemScore]) -> tuple[GroupScore, ...]:
    """Each level, then all levels where there are several; after a group, its parts by kind if it has such problems."""
    levels = sorted({score.level for score in scores}, key=natural)
    groups = [(level, [s for s in scores if s.level == level]) for level in levels]
    if len(levels) > 1:
        groups.append(("all levels", list(scores)))
    parts: tuple[tuple[str, Callable[[ProblemScore], bool]], ...] = (
        (f"without {CONSTANT} and {ELIMINATED}", lambda s: not (s.verified and s.kind in SIMPLIFIED)),
        (CONSTANT, lambda s: s.verified and s.kind == CONSTANT),
        (ELIMINATED, lambda s: s.verified and s.kind == ELIMINATED))
    rows = []
    for name, members in groups:
        rows.append(score_group(name, "", members))
        if any(s.verified and s.kind in SIMPLIFIED for s in members):
            chosen = [(part, [s for s in members if takes(s)]) for part, takes in parts]
            rows += [score_group(name, part, some) for part, some in chosen if some]
    return tuple(rows)


def score_group(name: str, part: str, scores: Sequence[ProblemScore]) -> GroupScore:
    """The score of ``scores``, which must not be empty."""
    good = [score for score in scores if score.verified]
    shares = [score.share_of_floor for score in good if score.share_of_floor is not None]
    return GroupScore(
        name=name, part=part, problems=len(scores), verified=len(good),
        states=Counter(score.state for score in scores), kinds=Counter(score.kind for score in good),
        against=tuple(_against(baseline, scores, good) for baseline in baselines_of(scores)),
        share_of_floor=median(shares) if shares else None)


def _against(baseline: str, scores: Sequence[ProblemScore], good: Sequence[ProblemScore]) -> BaselineScore:
    named = [(score.name, score.speeds[baseline]) for score in good if baseline in score.speeds]
    values = [speed.value for _, speed in named if math.isfinite(speed.value) and speed.value > 0]
    above = [sum(value > p for value in values) for p in (1.0, 2.0)]
    fast_0, fast_1, fast_2 = (count / len(scores) for count in (len(good), *above))
    return BaselineScore(baseline, (fast_0, fast_1, fast_2), geometric_mean(values) if values else None, len(values),
                         tuple(name for name, speed in named if speed.is_slower))
