"""The axes of the CUDA spectral energy: how long their transforms are, and in which stages they run.

An axis without lags needs no transform: Parseval holds on it directly. Of the real axis about half the spectrum is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

LARGEST_RADIX = 16
LARGEST_REAL_RADIX = 24


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: ``size`` points, ``lag`` D, a transform of ``length`` points in stages of ``radices``.

    Without radices the axis is not transformed. ``real`` marks the axis of which only the blocks
    ``0 .. radices[0] // 2`` of the first stage are kept.
    """

    size: int
    lag: int
    length: int
    radices: tuple[int, ...]
    real: bool

    @property
    def grid(self) -> int:
        """Number of lags, 2 D + 1: the length of the transform of the weights."""
        return 2 * self.lag + 1

    @property
    def slots(self) -> int:
        """Number of frequencies kept."""
        if not self.real or not self.radices:
            return self.length
        return (self.radices[0] // 2 + 1) * (self.length // self.radices[0])

    @property
    def grid_pitch(self) -> int:
        """Length of a row of the fold table: a multiple of 4."""
        return ceil(self.grid / 4) * 4


def codelet_cost(points: int) -> float:
    """Rough operations of a transform of ``points`` points per point: the sum of the prime factors."""
    total, rest, prime = 0.0, points, 2
    while rest > 1:
        while rest % prime == 0:
            total += 1.5 if prime == 2 else prime
            rest //= prime
        prime += 1
    return total


def factor(length: int, real: bool) -> tuple[int, ...] | None:
    """Radices whose product is ``length``: as few as possible, then balanced; None if there are none."""
    best: tuple[tuple[int, int, float, int, tuple[int, ...]], tuple[int, ...]] | None = None

    def walk(rest: int, chosen: tuple[int, ...]) -> None:
        nonlocal best
        if rest == 1 and chosen:
            slots = length
            if real:
                slots = (chosen[0] // 2 + 1) * (length // chosen[0])
            key = (len(chosen), slots, sum(codelet_cost(r) for r in chosen), max(chosen), chosen)
            if best is None or key < best[0]:
                best = (key, chosen)
            return
        limit = LARGEST_REAL_RADIX if real and not chosen else LARGEST_RADIX
        for radix in range(2, limit + 1):
            if rest % radix == 0 and len(chosen) < 5 and codelet_cost(radix) <= 16:
                walk(rest // radix, (*chosen, radix))

    walk(length, ())
    return best[1] if best else None


def choose_axis(size: int, lag: int, real: bool) -> Axis:
    """The cheapest transform of at least ``size + lag`` points: slots count most, stages a little."""
    if lag == 0:
        return Axis(size, 0, size, (), real)
    best: tuple[float, Axis] | None = None
    least = size + lag
    for length in range(least, least + max(4, least // 6) + 1):
        radices = factor(length, real)
        if radices is None:
            continue
        axis = Axis(size, lag, length, radices, real)
        cost = axis.slots * (1 + 0.06 * len(radices)) + 0.002 * length * sum(map(codelet_cost, radices))
        if best is None or cost < best[0]:
            best = (cost, axis)
    if best is None:
        raise ValueError(f"no transform length of small factors near {least}")
    return best[1]
