"""Texts as functions of sizes: the same text for several sizes, with formulas in place of the numbers that differ.

Texts are compared token by token. What is no number must be the same; sizes whose texts differ otherwise (a loop that
is cut, a pragma, a term that a factor of 1 leaves out) belong to another variant. A variant is only made where each of
its numbers has a formula that gives, at each of its points, the very number that stands in that point's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernelwright.dynamic.formulas import Form, Polynomial, Real, Sizes, Whole, constant, fit, fit_ceiling, fit_real

#: What a text is written in: C, or C whose kernels are launched on a device, as in CUDA; Python.
Language = Literal["c", "launched", "python"]

_TOKEN = re.compile(r"""
    "(?:[^"\\\n]|\\.)*"                                               # a text
  | [A-Za-z_]\w*                                                      # a word
  | (?P<real>\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?!\w)         # a floating number
  | (?P<whole>\d+)(?=(?:LL|u)\b|(?!\w|\.\d))                           # a whole number
  | \d\w* | \s+ | .""", re.VERBOSE)
_WHOLE, _REAL = "\0", "\1"
#: What begins the line of a declaration of arrays, whose extents are constants: those of the largest size.
_ARRAYS = re.compile(r"\s*(?:alignas\(\d+\)\s+)?(?:__shared__\s+)?(?:real|float|double|char|bool|u?int\d+_t|kw_\w+"
                     r"(?:<\w+>)?)\s+\w+\[[^=]*$")
#: Where a whole number must be one that the compiler knows.
_CONSTANT_LINE = re.compile(r"\s*#|.*\b(?:static_assert|__launch_bounds__)\b")
# The one function of a kernel's text that gets sizes.
_ENTRY = re.compile(r"(?m)^static const char\* \w+\(")
# The line before a loop that is written out, whose bounds the compiler must know.
_UNROLLED = re.compile(r"\s*#pragma unroll\s*$")
_FREE_BEFORE, _FREE_AFTER = "([{,=", ")]},;"


@dataclass(frozen=True, slots=True)
class Split:
    """A text without its numbers, and these. pieces: the texts around the numbers, one more than these."""

    pieces: tuple[str, ...]
    kinds: str
    numbers: tuple[int | float, ...]


def split(text: str) -> Split:
    """The text taken apart; a floating number keeps its value, and its digits where these differ from Python's."""
    pieces, kinds, numbers, begin = [], "", [], 0
    for found in _TOKEN.finditer(text):
        if found.lastgroup is None:
            continue
        value = float(found[0]) if found.lastgroup == "real" else int(found[0])
        if found.lastgroup == "real" and repr(value) != found[0]:
            continue  # its digits say something else: it must be the same everywhere
        pieces.append(text[begin:found.start()])
        begin = found.end()
        kinds += _REAL if found.lastgroup == "real" else _WHOLE
        numbers.append(value)
    return Split((*pieces, text[begin:]), kinds, tuple(numbers))


@dataclass(frozen=True, slots=True)
class Variant:
    """The text of some points. formulas: of its numbers, in order. extents: for those that are extents of arrays, the
    largest."""

    points: tuple[Sizes, ...]
    pieces: tuple[str, ...]
    formulas: tuple[Whole | Real, ...]
    extents: Mapping[int, int] = field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether the text has sizes in it."""
        return any(not f.is_constant and n not in self.extents for n, f in enumerate(self.formulas))

    def at(self, sizes: Sizes) -> Split:
        """The text of these sizes, taken apart, with each extent as it would be for these sizes alone."""
        return Split(self.pieces, "".join(_REAL if isinstance(f, Real) else _WHOLE for f in self.formulas),
                     tuple(f.at(sizes) for f in self.formulas))

    def gives(self, sizes: Sizes, text: str) -> bool:
        """Whether a text of these sizes is what the variant says: its numbers are those of the formulas, and extents of
        arrays no more than the largest."""
        own, other = self.at(sizes), split(text)
        return own.pieces == other.pieces and own.kinds == other.kinds and all(
            b <= self.extents[n] if n in self.extents else repr(a) == repr(b)
            for n, (a, b) in enumerate(zip(own.numbers, other.numbers, strict=True)))

    def text(self, names: Sequence[str], language: Language) -> str:
        """The text with names of the sizes."""
        over, real = ("//", "float") if language == "python" else ("/", "double")
        wide = [f"(long long){name}" for name in names]
        result = self.pieces[0]
        for number, (formula, after) in enumerate(zip(self.formulas, self.pieces[1:], strict=True)):
            if number in self.extents:
                result += str(self.extents[number]) + after
                continue
            own = wide if language == "launched" and after.startswith("LL") else names
            text = formula.text(own, real) if isinstance(formula, Real) else formula.text(own, over)
            if formula.is_constant:
                result += text + after
                continue
            if re.match(r"u\b", after):
                text, after = f"unsigned({text})", after[1:]
            after = after.removeprefix("LL")  # sizes are wide
            if language != "python":  # what is computed is no constant expression
                line = result.rfind("\n") + 1
                result = result[:line] + re.sub(r"\bconstexpr\b", "const", result[line:])
            before = result.rstrip(" ")[-1:]
            free = re.fullmatch(r"\w+|unsigned\(.*\)", text) or (
                before in _FREE_BEFORE and after.lstrip(" ")[:1] in _FREE_AFTER)
            result += (text if free else f"({text})") + after
        return result


def variants(texts: Mapping[Sizes, str], language: Language, *, most: int, spare: int = 0,
             highest: Sizes | None = None) -> list[Variant]:
    """The texts of all points as a few variants: the ``most`` that have most points.

    spare: how many points more than unknowns a formula must have been found from. highest: the highest sizes, where
    variants shall serve points of which there is no text here.
    """
    groups: dict[tuple[tuple[str, ...], str], dict[Sizes, Split]] = {}
    for point, text in texts.items():
        taken = split(text)
        groups.setdefault((taken.pieces, taken.kinds), {})[point] = taken
    found: list[Variant] = []
    waiting = list(groups.values())
    fits: dict[tuple, Whole | Real | None] = {}
    while waiting:
        group = waiting.pop()
        made = _variant(group, language, spare, highest, fits)
        if isinstance(made, Variant):
            found.append(made)
            continue
        parts: dict[int | float, dict[Sizes, Split]] = {}  # a number that has no formula is one in each part
        for point, text in group.items():
            parts.setdefault(text.numbers[made], {})[point] = text
        waiting += parts.values()
    found.sort(key=lambda variant: (-len(variant.points), variant.points))
    return sorted(found[:most], key=lambda variant: variant.points)


def _variant(group: Mapping[Sizes, Split], language: Language, spare: int, highest: Sizes | None,
             fits: dict) -> Variant | int:
    """The one variant of some texts, or the place of a number that keeps them from being one."""
    points = list(group)
    first = group[points[0]]
    columns = list(zip(*(text.numbers for text in group.values()), strict=True))
    formulas: list[Whole | Real | None] = []
    for kind, values in zip(first.kinds, columns, strict=True):
        key = (tuple(points), values, kind)
        if key not in fits:
            if kind == _REAL:
                same = len(set(map(repr, values))) == 1
                fits[key] = _Same(values[0]) if same else fit_real(points, values, spare=spare)
            else:
                fits[key] = fit(points, values, spare=spare)
        formulas.append(fits[key])
    if None in formulas:
        polynomials = list(dict.fromkeys(f for f in formulas if isinstance(f, Polynomial) and not f.is_constant))
        numbers = sorted({f.at(points[0]) for f in formulas if isinstance(f, Polynomial) and f.is_constant})
        divisors = sorted({*numbers, *(a * b for a in numbers for b in numbers if 1 < a <= b <= 1024)})
        for place, formula in enumerate(formulas):
            if formula is None and first.kinds[place] == _WHOLE:
                formulas[place] = fit_ceiling(points, columns[place], polynomials, divisors, spare=spare)
    extents: dict[int, int] = {}
    above = line = ""
    waits = language == "c" and any(_ENTRY.search(piece) for piece in first.pieces)  # for the function that gets sizes
    for place, (before, formula) in enumerate(zip(first.pieces, formulas, strict=False)):
        lines = (line + before).split("\n")
        above, line = (lines[-2] if len(lines) > 1 else above), lines[-1]
        waits = waits and not _ENTRY.search(before)
        if language == "c" and _is_extent(line):
            extents[place] = max(columns[place])
            if highest is not None:
                if formula is None or isinstance(formula, Real) or not (formula.is_constant or formula.grows):
                    return place
                extents[place] = formula.at(highest)
            elif formula is None:
                formulas[place] = formula = constant(extents[place], len(points[0]))
        if formula is None:
            return place
        if language != "python" and place not in extents and not formula.is_constant and (
                (waits and not line.lstrip().startswith("//")) or _must_be_constant(line, first.pieces[place + 1])
                or (language == "launched" and (
                    _UNROLLED.match(above) or (line.endswith(("[", "][")) and "=" not in line)))):
            return place
        line += "0"
    return Variant(tuple(points), first.pieces, tuple(f for f in formulas if f is not None), extents)


@dataclass(frozen=True, slots=True)
class _Same(Real):
    """A floating number that is the same for all sizes."""

    value: float  # type: ignore[assignment]
    form: Form = "whole"

    is_constant = True

    def at(self, sizes: Sizes) -> float:
        return self.value

    def text(self, names: Sequence[str], number: str) -> str:
        return repr(self.value)


def _is_extent(line: str) -> bool:
    """Whether a number behind this beginning of a line is the extent of an array in its declaration."""
    return line.endswith("[") and _ARRAYS.match(line) is not None


def _must_be_constant(before: str, after: str) -> bool:
    """Whether a number between these texts must be known to the compiler: in a directive, or among arguments of a
    template, which stand in angle brackets without spaces."""
    if _CONSTANT_LINE.match(before):
        return True
    opened = re.search(r"\w<(?:[\w:]+, )*$", before)
    return opened is not None and re.match(r"(?:, [\w:]+)*>", after) is not None
