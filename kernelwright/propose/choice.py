"""Which file the user gets: kernelwright's own, unless a candidate is shown to be better and worse in nothing.

A candidate takes its place where all of this was measured in one run of the judge, side by side:

- It is right, and its limits, if it has any, are limits of our file as well.
- It is no less accurate: its error against float64 is at most ours, or one rounding of a result.
- It is faster than our file beyond the interval of the rounds that both ran in, and so by at least 1 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.judge.records import CandidateTiming
from kernelwright.judge.report.rank import is_faster, time_ratio
from kernelwright.propose.standing import Verdict, error, passed, seconds, speed
from kernelwright.report import units
from kernelwright.timing.statistics import Ratio

OURS = "kernelwright's own file"
#: Half the distance of neighbouring numbers at one: what rounding a result takes in any case.
_ROUNDING = {"torch.float32": 2.0**-24, "torch.float64": 2.0**-53, "torch.float16": 2.0**-11,
             "torch.bfloat16": 2.0**-8}


@dataclass(frozen=True, slots=True)
class Choice:
    """Whose file it is. ``index``: of the candidate among those given, None for ours. ``why``: one sentence.
    ``against``: for each candidate that passed and was not taken, why not. ``over_ours``: our time over its."""

    index: int | None
    why: str
    against: Mapping[int, str]
    over_ours: Ratio | None = None


def choose(ours: Verdict | None, candidates: Sequence[Verdict], profile: Mapping[str, Any]) -> Choice:
    """Choose among our file and candidates by their verdicts. ``profile``: the document's ``problem_profile``.

    Without a verdict on ours, or where ours did not pass, a candidate must be faster than eager.
    """
    refused = ours["verdict"] if ours is not None and not passed(ours) else ""
    ours = ours if ours is not None and passed(ours) else None
    against: dict[int, str] = {}
    better: list[tuple[float, int, Ratio | None]] = []
    for index, candidate in enumerate(candidates):
        if not passed(candidate):
            continue
        why, ratio = _objection(ours, candidate, profile)
        if why:
            against[index] = why
        else:
            better.append((seconds(candidate) or 0.0, index, ratio))
    if better:
        _, index, ratio = min(better, key=lambda entry: entry[:2])
        for _, other, _ in better:
            if other != index:
                against[other] = "another candidate takes less time"
        how = f"{_times(ratio)} as fast as {OURS}" if ratio is not None else \
            f"{units.digits(speed(candidates[index]) or 0)}x as fast as eager, and there is no file of kernelwright's"
        return Choice(index, f"It is right, no less accurate, and {how}.", against, ratio)
    right = sum(map(passed, candidates))
    if refused:
        return Choice(None, f"The verdict on kernelwright's own file is {refused}, and no candidate is shown to be "
                      "faster than the model.", against)
    if ours is None:
        return Choice(None, "There is no file of kernelwright's own, and no candidate is shown to be faster than the "
                      "model.", against)
    if not right:
        return Choice(None, "No candidate is right.", against)
    return Choice(None, f"No candidate is shown to be better: {_summed(against)}.", against)


def _objection(ours: Verdict | None, candidate: Verdict, profile: Mapping[str, Any]) -> tuple[str, Ratio | None]:
    """Why a right candidate is not to be taken ("" where it is), and our time over its."""
    timing = timing_of(candidate)
    if timing is None:
        return "it was not timed", None
    limits = [limit for limit in candidate["limits"] if ours is None or limit not in ours["limits"]]
    if limits:
        return f"it has limits: {limits[0]}", None
    if ours is None:
        speedup = timing.speedup
        return ("" if speedup is not None and is_faster(speedup) else "it is not shown to be faster than eager"), None
    own, theirs = error(ours), error(candidate)
    if own is not None and theirs is not None and theirs > max(own, _rounding(profile)):
        return f"it is less accurate: {theirs:.1e} against {own:.1e}", None
    own_timing = timing_of(ours)
    if own_timing is None:
        return "kernelwright's own file was not timed", None
    ratio = time_ratio(own_timing, timing)
    few = min(len(own_timing.samples), len(timing.samples)) < 5
    return ("it was timed in too few rounds" if few else "" if is_faster(ratio) else "it is not shown to be faster",
            ratio)


def timing_of(verdict: Verdict) -> CandidateTiming | None:
    """The timing of a document as a record again."""
    found = verdict.get("timing")
    if not found:
        return None
    fields: dict[str, Any] = {**found, "speedup": Ratio(**found["speedup"]) if found.get("speedup") else None}
    fields |= {name: tuple(found[name]) for name in ("interval", "samples", "rounds")}
    return CandidateTiming(**fields)


def _rounding(profile: Mapping[str, Any]) -> float:
    """What one rounding of a result is, of the most precise type that results have."""
    return min((_ROUNDING[o["dtype"]] for o in profile.get("outputs") or () if o.get("dtype") in _ROUNDING),
               default=0.0)


def _times(ratio: Ratio) -> str:
    return f"{units.digits(ratio.value)}x ({units.digits(ratio.low)} to {units.digits(ratio.high)})"


def _summed(against: Mapping[int, str]) -> str:
    reasons: dict[str, int] = {}
    for why in against.values():
        head = why.partition(":")[0]
        reasons[head] = reasons.get(head, 0) + 1
    return "; ".join(f"of {count}, {why}" if len(against) > 1 else why for why, count in reasons.items())
