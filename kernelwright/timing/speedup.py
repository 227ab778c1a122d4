"""What measured times say: how many times faster the candidate is, or why no number would hold.

A number is given where it would come out again: rounds enough, an interval below a factor of two, a machine that left
the processors to what was measured, and calls on flushed caches and calls in a row that say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.timing.rounds import BUSY, Times, ratio
from kernelwright.timing.statistics import Ratio

FASTER, SLOWER, TIE, UNKNOWN = "faster", "slower", "tie", "not measurable here"
#: From so many rounds on the interval says what it claims; with fewer only what is beyond every doubt counts: more than
#: this factor in each of them.
FEWEST_PAIRS, BEYOND_DOUBT = 5, 2.0
#: An interval whose ends are further apart than by this factor is no number.
WIDEST = 2.0
#: Wall times of calls in a row that differ by less are equal.
WALL_NOISE = 1.05


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Time of ``baseline`` over the candidate's.

    value, low, high: of calls on flushed caches (cold), with its 95 % interval over paired rounds. in_a_row: of calls
    in a row (warm), None where there was no time for these. verdict: faster, slower, tie, or not measurable here; then
    ``why`` says what is missing, and neither number is one to go by.
    """

    baseline: str
    value: float
    low: float
    high: float
    in_a_row: float | None
    verdict: str
    why: str = ""

    @property
    def disagree(self) -> bool:
        """Whether calls on flushed caches and calls in a row say the opposite."""
        return self.why.startswith(_DISAGREE)


_DISAGREE = "cold and warm times disagree"


def speed_up(entries: Mapping[str, Times], baseline: str, candidate: str) -> SpeedUp:
    """The speed-up of one entry over another, by their names."""
    slower, faster = entries[baseline], entries[candidate]
    found, warm = ratio(slower, faster), _in_a_row(slower, faster)
    verdict, why = judged(found, warm, slower.busy or faster.busy)
    return SpeedUp(baseline, found.value, found.low, found.high, warm, verdict, why)


def _in_a_row(slower: Times, faster: Times) -> float | None:
    if slower.back_to_back_seconds is None or faster.back_to_back_seconds is None:
        return None
    return slower.back_to_back_seconds / max(faster.back_to_back_seconds, 1e-12)


def judged(found: Ratio, warm: float | None, busy: bool) -> tuple[str, str]:
    """(verdict, why there is none) of a ratio of calls on flushed caches. warm: that of calls in a row; busy: whether
    either was measured on a busy machine."""
    if busy:
        return UNKNOWN, f"{BUSY}: other programs took the processors"
    sure = found.low >= BEYOND_DOUBT or found.high <= 1.0 / BEYOND_DOUBT
    if found.pairs < FEWEST_PAIRS and not sure:
        return UNKNOWN, f"only {found.pairs} round{'s' * (found.pairs > 1)} fitted the budget"
    if is_wide(found.low, found.high):
        return UNKNOWN, f"the times spread so much that it may be {found.low:.2g}x or {found.high:.2g}x"
    cold = FASTER if found.low > 1.0 else SLOWER if found.high < 1.0 else TIE
    if warm is not None and (warm * WALL_NOISE < 1.0 if cold == FASTER else warm > WALL_NOISE and cold == SLOWER):
        return UNKNOWN, f"{_DISAGREE}: {found.value:.2f}x on flushed caches, {warm:.2f}x in a row"
    return cold, ""


def is_wide(low: float, high: float) -> bool:
    """Whether an interval is too wide to stand for a number."""
    return high > WIDEST * low
