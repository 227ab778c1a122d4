"""Numbers as people read them: three digits and a unit."""

from __future__ import annotations

import math

_LARGE = ("", "k", "M", "G", "T", "P", "E")
_SMALL = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def digits(value: float) -> str:
    """``value`` with three significant digits, without an exponent where it is between 0.001 and 1000."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.3g}")
    if abs(rounded) < 1e-3:
        return f"{rounded:g}"
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def scaled(value: float, unit: str) -> str:
    """A count or a number of bytes with a decimal prefix: 2415919104, "FLOP" -> "2.42 GFLOP"."""
    power = 0
    while abs(value) >= 999.5 and power < len(_LARGE) - 1:
        value, power = value / 1000.0, power + 1
    return f"{int(value) if power == 0 else digits(value)} {_LARGE[power]}{unit}"


def operations(value: float) -> str:
    """Floating-point operations, in decimal units."""
    return scaled(value, "FLOP")


def memory(value: float) -> str:
    """Bytes, in decimal units."""
    return scaled(value, "B")


def seconds(value: float) -> str:
    """A time, in the unit in which it has one to three digits before the point."""
    for unit, size in _SMALL:
        if abs(value) >= 0.9995 * size:
            return f"{digits(value / size)} {unit}"
    return "0 s" if value == 0 else f"{digits(value * 1e9)} ns"


def span(low: float, high: float) -> str:
    """Two times with one unit where they have the same: ``400-420 ms``."""
    first, second = seconds(low), seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number}-{second}" if second.endswith(f" {unit}") else f"{first}-{second}"


def change(before: float, after: float, less: str = "less", more: str = "more") -> str:
    """In words by what factor ``after`` is below or above ``before``; "the same" within 2 percent."""
    if before == after or (after and abs(before / after - 1.0) < 0.02):
        return "the same"
    if not after:
        return "none left"
    if not before:
        return more
    return f"{digits(before / after)}x {less}" if before > after else f"{digits(after / before)}x {more}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
