"""Numbers as formulas of sizes: polynomials with whole coefficients, quotients of them, and the text of both.

A formula is found from the number's values at some sizes, and is only taken where it gives every one of them. Extents
and strides of tensors are products of sizes, so that few forms suffice; they are tried from the simplest on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from typing import Literal

Sizes = tuple[int, ...]
"""A value of each size, in their order."""

#: The highest powers of one size, and of all together, in a monomial: attention has the square of a length in a batch.
_DEGREE, _DEGREES = 2, 3


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The sum of ``coefficient * product of size ** power``: of (coefficient, powers) in ``terms``."""

    terms: tuple[tuple[int, tuple[int, ...]], ...]

    def at(self, sizes: Sizes) -> int:
        """Its value at some sizes."""
        return sum(c * prod(s ** p for s, p in zip(sizes, powers, strict=True)) for c, powers in self.terms)

    @property
    def is_constant(self) -> bool:
        """Whether it is one number for all sizes."""
        return all(not any(powers) for _, powers in self.terms)

    @property
    def grows(self) -> bool:
        """Whether it is nowhere less where a size is more."""
        return all(c > 0 for c, powers in self.terms if any(powers))

    def text(self, names: Sequence[str], over: str = "/") -> str:
        """It with names of the sizes, without parentheses around it. over: how a language divides whole numbers."""
        parts = []
        for coefficient, powers in self.terms:
            factors = [name for name, power in zip(names, powers, strict=True) for _ in range(power)]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            parts.append((coefficient < 0, " * ".join(factors)))
        if not parts:
            return "0"
        text = f"-{parts[0][1]}" if parts[0][0] else parts[0][1]
        return text + "".join(f" - {part}" if negative else f" + {part}" for negative, part in parts[1:])


@dataclass(frozen=True, slots=True)
class Ceiling:
    """``value`` divided by a positive number and rounded up."""

    value: Polynomial
    divisor: int

    is_constant = False

    def at(self, sizes: Sizes) -> int:
        return -(-self.value.at(sizes) // self.divisor)

    @property
    def grows(self) -> bool:
        return self.value.grows

    def text(self, names: Sequence[str], over: str = "/") -> str:
        return f"({self.value.text(names)} + {self.divisor - 1}) {over} {self.divisor}"


@dataclass(frozen=True, slots=True)
class Product:
    """A polynomial in the sizes and in one more number, which is last among its powers."""

    value: Polynomial
    other: Ceiling

    is_constant = False

    def at(self, sizes: Sizes) -> int:
        return self.value.at((*sizes, self.other.at(sizes)))

    @property
    def grows(self) -> bool:
        return self.value.grows and self.other.grows

    def text(self, names: Sequence[str], over: str = "/") -> str:
        return self.value.text((*names, f"({self.other.text(names, over)})"))


Form = Literal["whole", "inverse", "unbiased", "root", "inverse root", "deviation"]
_OF_FORM: dict[Form, Callable[[int], float]] = {
    "whole": float, "inverse": lambda n: 1 / n, "unbiased": lambda n: n / (n - 1), "root": math.sqrt,
    "inverse root": lambda n: 1 / math.sqrt(n), "deviation": lambda n: math.sqrt(n / (n - 1))}
#: The whole number that a value of each form is made of, nearly, and the least for which it is one.
_WHOLE_OF: dict[Form, tuple[Callable[[float], float], float]] = {
    "whole": (float, -math.inf), "inverse": (lambda v: 1 / v, 1), "unbiased": (lambda v: v / (v - 1), 2),
    "root": (lambda v: v * v, 0), "inverse root": (lambda v: 1 / (v * v), 1),
    "deviation": (lambda v: v * v / (v * v - 1), 2)}

Whole = Polynomial | Ceiling | Product
"""A whole number of some sizes."""


@dataclass(frozen=True, slots=True)
class Real:
    """A floating number, in float64: a whole one, one divided by it ("inverse"), it divided by what is one less
    ("unbiased", as of a variance of samples), and the square roots of these ("root", "inverse root", "deviation")."""

    value: Polynomial
    form: Form

    is_constant = False

    def at(self, sizes: Sizes) -> float:
        return _OF_FORM[self.form](self.value.at(sizes))

    def text(self, names: Sequence[str], number: str) -> str:
        """number: what the language calls the conversion to float64."""
        text = f"{number}({self.value.text(names)})"
        ratio = f"{text} / ({text} - 1.0)"
        root = "sqrt({})" if number == "double" else "({}) ** 0.5"
        return {"whole": text, "inverse": f"1.0 / {text}", "unbiased": ratio, "root": root.format(text),
                "inverse root": f"1.0 / {root.format(text)}", "deviation": root.format(ratio)}[self.form]


def constant(value: int, count: int) -> Polynomial:
    """A number as a formula of ``count`` sizes."""
    return Polynomial(((value, (0,) * count),) if value else ())


def fit(points: Sequence[Sizes], values: Sequence[int], *, spare: int = 0) -> Polynomial | None:
    """The polynomial with these values at these points; None where there is none of the forms that are tried.

    spare: how many points more than unknowns it must have been found from, unless it is a constant.
    """
    if len(set(values)) == 1:
        return constant(values[0], len(points[0]))
    for basis in _bases(len(points[0])):
        if len(points) < len(basis) + spare:
            continue
        solution = _solved(points, values, basis)
        if solution is None:
            continue
        terms = tuple((c, powers) for c, powers in zip(solution, basis, strict=True) if c)
        found = Polynomial(tuple(sorted(terms, key=lambda term: term[1], reverse=True)))
        if all(found.at(point) == value for point, value in zip(points, values, strict=True)):
            return found
    return None


def fit_real(points: Sequence[Sizes], values: Sequence[float], *, spare: int = 0) -> Real | None:
    """The number with these very values at these points, or None."""
    for form, (whole_of, least) in _WHOLE_OF.items():
        try:
            whole = [round(whole_of(v)) for v in values]
        except (ZeroDivisionError, OverflowError, ValueError):
            continue
        polynomial = fit(points, whole, spare=spare)
        if polynomial is None:
            continue
        found = Real(polynomial, form)
        if all(polynomial.at(p) >= least and repr(found.at(p)) == repr(v)
               for p, v in zip(points, values, strict=True)):
            return found
    return None


def fit_ceiling(points: Sequence[Sizes], values: Sequence[int], others: Iterable[Polynomial], divisors: Iterable[int],
                *, spare: int = 0) -> Ceiling | Product | None:
    """A number that is one of the ``others`` divided by one of the ``divisors`` and rounded up, perhaps in a product
    with sizes."""
    for polynomial, divisor in itertools.product(others, divisors):
        if divisor < 2:
            continue
        ceiling = Ceiling(polynomial, divisor)
        steps = [ceiling.at(point) for point in points]
        if steps == list(values):
            return ceiling
        if len(set(steps)) > 1 and all(step and not value % step for step, value in zip(steps, values, strict=True)):
            found = fit([(*point, step) for point, step in zip(points, steps, strict=True)], values, spare=spare)
            if found is not None:
                return Product(found, ceiling)
    return None


def unknowns(points: Sequence[Sizes], most: Sequence[int]) -> tuple[int, int]:
    """How many of the coefficients of a formula values at these points determine, and how many there are.

    most: how many values each size may have: of two values nobody tells a square.
    """
    powers = [p for p in itertools.product(*(range(min(_DEGREE + 1, n)) for n in most)) if sum(p) <= _DEGREES]
    rows = [[Fraction(prod(s ** p for s, p in zip(point, own, strict=True))) for own in powers] for point in points]
    rank = 0
    for column in range(len(powers)):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            if factor:
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank, len(powers)


@cache
def _bases(count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Lists of monomials of ``count`` sizes, simplest first: one alone, one and a number, and all of some degree."""
    powers = [p for p in itertools.product(range(_DEGREE + 1), repeat=count) if sum(p) <= _DEGREES]
    powers.sort(key=lambda p: (sum(p), max(p), tuple(-x for x in p)))
    one, moving = powers[0], powers[1:]
    straight = tuple(p for p in powers if sum(p) <= 1)
    crossed = tuple(p for p in powers if max(p) <= 1)
    lists = [*((p,) for p in moving), *((p, one) for p in moving), straight, crossed, tuple(powers)]
    return tuple(dict.fromkeys(lists))


def _solved(points: Sequence[Sizes], values: Sequence[int], basis: Sequence[tuple[int, ...]]) -> list[int] | None:
    """The whole coefficients of monomials that give the values at some of the points; None where there are none."""
    width = len(basis)
    # A few points that lie apart decide; whoever asks compares the others.
    step = max(1, len(points) // (4 * width))
    some = [*range(0, len(points), step), len(points) - 1]
    table = [[Fraction(prod(s ** p for s, p in zip(points[n], powers, strict=True))) for powers in basis]
             + [Fraction(values[n])] for n in some]
    for column in range(width):
        pivot = next((r for r in range(column, len(table)) if table[r][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        head = table[column]
        for r, row in enumerate(table):
            if r != column and row[column]:
                factor = row[column] / head[column]
                table[r] = [a - factor * b for a, b in zip(row, head, strict=True)]
    found = [table[c][width] / table[c][c] for c in range(width)]
    if any(f.denominator != 1 for f in found) or any(row[width] for row in table[width:]):
        return None
    return [int(f) for f in found]


def points_of(ranges: Sequence[tuple[int, int]]) -> Iterator[Sizes]:
    """Every value of sizes with these lowest and highest values."""
    return itertools.product(*(range(low, high + 1) for low, high in ranges))
