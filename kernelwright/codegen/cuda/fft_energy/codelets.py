"""Straight-line transforms of a few points: C text of ``v[f] = sum of v[q] exp(-2 pi i f q / n)``.

Composite lengths split in frequency (radix 4 first), prime lengths pair q with n - q, which halves
the products. Constants are rounded from float64.
"""

from __future__ import annotations

import re
from math import cos, gcd, pi, sin

_NAME = re.compile(r"\bt\d+\b")

Value = tuple[str | None, str | None]
"""Real and imaginary part: names of variables; None is an exact zero."""


def unit_root(numerator: int, denominator: int) -> tuple[float, float]:
    """cos and sin of ``2 pi numerator / denominator``; multiples of a quarter turn are exact."""
    numerator %= denominator
    common = gcd(numerator, denominator) if numerator else denominator
    numerator, denominator = numerator // common, denominator // common
    if denominator in (1, 2, 4):
        quarter = numerator * (4 // denominator)
        return ((1.0, 0.0, -1.0, 0.0)[quarter], (0.0, 1.0, 0.0, -1.0)[quarter])
    angle = 2 * pi * numerator / denominator
    return cos(angle), sin(angle)


class Codelet:
    """Collects the statements of one transform."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def assign(self, expression: str) -> str:
        """A new variable that holds ``expression``."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"  const float {name} = {expression};")
        return name

    def add(self, a: str | None, b: str | None) -> str | None:
        """a + b."""
        return b if a is None else a if b is None else self.assign(f"{a} + {b}")

    def subtract(self, a: str | None, b: str | None) -> str | None:
        """a - b."""
        if b is None:
            return a
        return self.assign(f"-{b}" if a is None else f"{a} - {b}")

    def combine(self, terms: list[tuple[str | None, float]]) -> str | None:
        """Sum of variables times constants."""
        total: str | None = None
        for name, factor in terms:
            if name is None or factor == 0.0:
                continue
            if factor == 1.0 or factor == -1.0:
                if total is None:
                    total = name if factor > 0 else self.assign(f"-{name}")
                else:
                    total = self.assign(f"{total} {'+' if factor > 0 else '-'} {name}")
            elif total is None:
                total = self.assign(f"{name} * {factor:.9g}f")
            else:
                total = self.assign(f"fmaf({name}, {factor:.9g}f, {total})")
        return total

    def turn(self, value: Value, numerator: int, denominator: int) -> Value:
        """value * exp(-2 pi i numerator / denominator)."""
        c, s = unit_root(numerator, denominator)
        re, im = value
        return self.combine([(re, c), (im, s)]), self.combine([(im, c), (re, -s)])

    def transform(self, values: list[Value]) -> list[Value]:
        """The transform of ``values``, in order of frequency."""
        points = len(values)
        if points == 1:
            return values
        if points == 2:
            (a, b), (c, d) = values
            return [(self.add(a, c), self.add(b, d)), (self.subtract(a, c), self.subtract(b, d))]
        radix = 4 if points % 4 == 0 and points > 4 else next(r for r in range(2, points + 1) if points % r == 0)
        if radix == points:
            return self.prime(values)
        rest = points // radix
        blocks: list[list[Value]] = [[] for _ in range(radix)]
        for j in range(rest):
            for k, value in enumerate(self.transform(values[j::rest])):
                blocks[k].append(self.turn(value, j * k, points))
        result: list[Value] = [(None, None)] * points
        for k, block in enumerate(blocks):
            for f, value in enumerate(self.transform(block)):
                result[k + radix * f] = value
        return result

    def prime(self, values: list[Value]) -> list[Value]:
        """A transform of an odd number of points through sums and differences of q and n - q."""
        points, half = len(values), len(values) // 2
        pairs = [(values[q], values[points - q]) for q in range(1, half + 1)]
        sums = [(self.add(a[0], b[0]), self.add(a[1], b[1])) for a, b in pairs]
        differences = [(self.subtract(a[0], b[0]), self.subtract(a[1], b[1])) for a, b in pairs]
        result: list[Value] = [(None, None)] * points
        first, second = (
            self.combine([(values[0][part], 1.0), *((s[part], 1.0) for s in sums)]) for part in (0, 1)
        )
        result[0] = first, second
        for k in range(1, half + 1):
            roots = [unit_root(k * q, points) for q in range(1, half + 1)]
            even = [
                self.combine(
                    [(values[0][part], 1.0), *((s[part], r[0]) for s, r in zip(sums, roots, strict=True))]
                )
                for part in (0, 1)
            ]
            odd = [
                self.combine([(d[part], r[1]) for d, r in zip(differences, roots, strict=True)])
                for part in (0, 1)
            ]
            # F(k) = even - i odd, F(n - k) = even + i odd.
            result[k] = (self.add(even[0], odd[1]), self.subtract(even[1], odd[0]))
            result[points - k] = (self.subtract(even[0], odd[1]), self.add(even[1], odd[0]))
        return result


def complex_codelet(name: str, points: int) -> str:
    """A device function that transforms ``float2 v[points]`` in place."""
    codelet = Codelet()
    values = codelet.transform([(f"v[{q}].x", f"v[{q}].y") for q in range(points)])
    return _function(f"{name}(float2* v)", codelet, values, "v")


def real_codelet(name: str, points: int, given: int) -> str:
    """A device function from ``float x[given]`` (zero beyond) to ``float2 v[points // 2 + 1]``."""
    codelet = Codelet()
    inputs: list[Value] = [(f"x[{q}]" if q < given else None, None) for q in range(points)]
    values = codelet.transform(inputs)[: points // 2 + 1]
    return _function(f"{name}(const float* x, float2* v)", codelet, values, "v")


def _function(signature: str, codelet: Codelet, values: list[Value], target: str) -> str:
    stores = []
    for f, (real, imaginary) in enumerate(values):
        stores.append(f"  {target}[{f}] = make_float2({real or '0.0f'}, {imaginary or '0.0f'});")
    # Statements whose results nothing uses are left out (a real transform computes mirrored values too).
    needed = set(_NAME.findall(" ".join(stores)))
    kept: list[str] = []
    for line in reversed(codelet.lines):
        variable, expression = line.split(" = ", 1)
        if variable.split()[-1] in needed:
            needed.update(_NAME.findall(expression))
            kept.append(line)
    head = f"static __device__ inline __attribute__((always_inline)) void {signature} {{"
    return "\n".join([head, *reversed(kept), *stores, "}"])
