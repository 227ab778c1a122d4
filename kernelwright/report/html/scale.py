"""Where values stand on an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """An axis on which equal factors are equal distances: ``low`` stands at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The place of a value; beyond the axis its nearer end."""
        share = math.log(min(max(value, self.low), self.high) / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, float]]:
        """(value, place) of round values."""
        return [(value, self.at(value)) for value in ticks(self.low, self.high)]


def around(values: Iterable[float], start: float, end: float, margin: float = 1.5) -> Logarithmic | None:
    """A logarithmic axis on which all positive finite ``values`` stand, with a ``margin`` beyond them; None where there
    is none."""
    shown = [v for v in values if v > 0 and math.isfinite(v)]
    return Logarithmic(min(shown) / margin, max(shown) * margin, start, end) if shown else None


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the scale; powers alone on a long one, and of these not more than ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    powers = powers[::max(1, -(-len(powers) // 10))]
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
