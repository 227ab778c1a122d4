"""Faults in the C++ of emitted files: one place of one kernel's text changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from mutations import conduct, functions, operands, parts
from mutations.fault import Fault

_STEP = r"^( +const real \w+ = )(\w+) {} (\w+);$"


def _kernels(text: str) -> tuple[int, int]:
    """Where the kernels stand in the text: behind the helpers, before the launchers."""
    start = text.index("\nstatic const char* ")
    return start, text.index('\nextern "C"', start)


def textual(pattern: str, change: Callable[[re.Match[str], str], str | None]) -> Callable[[str], Iterator[str]]:
    """Texts with one match of ``pattern`` among the kernels replaced by what ``change`` makes of it."""

    def apply(text: str) -> Iterator[str]:
        start, end = _kernels(text)
        kernels = text[start:end]
        for found in re.finditer(pattern, kernels, re.MULTILINE):
            new = change(found, kernels)
            if new is not None and new != found[0]:
                yield text[:start] + kernels[:found.start()] + new + kernels[found.end():] + text[end:]

    return apply


def _parameter(kernels: str, name: str) -> bool:
    """Whether it is an element of a parameter: a tensor that is read at another index than the first input is."""
    found = re.search(rf"const real {name} = real\(in[1-9]\[(\w+)\]\);", kernels)
    return found is not None and f"in0[{found[1]}]" not in kernels


def _fed(kernels: str, name: str) -> bool:
    return re.search(rf"kw_exp\({name}\)", kernels) is not None


def _tail(found: re.Match[str], kernels: str) -> str | None:
    size = int(found[2])
    tile = 8 if size % 8 else 16 if size % 16 else 0
    return f"{found[1]}{size // tile * tile};" if tile and size > tile else None


def _last(found: re.Match[str], kernels: str) -> str | None:
    return f"{found[1]}{int(found[2]) - 1};" if int(found[2]) > 1 else None


_BOUND = r"(for \(int64_t \w+ = 0; \w+ < )(\d+);"
_END = r"(constexpr int64_t begin = 0, end = )(\d+);"


def _both(change: Callable[[re.Match[str], str], str | None]) -> Callable[[str], Iterator[str]]:
    def apply(text: str) -> Iterator[str]:
        yield from textual(_BOUND, change)(text)
        yield from textual(_END, change)(text)

    return apply


def _dropped(sign: str, wanted: bool) -> Callable[[str], Iterator[str]]:
    """The second operand left out, where it is (or is not) a parameter."""
    return textual(_STEP.format(re.escape(sign)),
                   lambda m, k: f"{m[1]}{m[2]};" if _parameter(k, m[3]) == wanted else None)


def _kinds(faults: tuple[Fault, ...], name: str) -> Fault:
    return next(f for f in faults if f.name == name)


def _like(known: Fault, apply: Callable[[str], Iterator[str]], *more: str) -> Fault:
    """The fault of the same name in C++."""
    return Fault(known.name, known.words, apply, known.kinds | set(more), known.verdicts, "cpp")


def _index(found: re.Match[str], kernels: str) -> str:
    return f"{found[1]}[0]);"


def _step_of_round(found: re.Match[str], kernels: str) -> str:
    """Stored with the upper 16 bits alone."""
    return (f"{found[1]}{{ float kept = {found[3]}; uint32_t bits; std::memcpy(&bits, &kept, 4); bits &= 0xffff0000u; "
            f"std::memcpy(&kept, &bits, 4); {found[2]} = kept; }}")


def _constant(found: re.Match[str], kernels: str) -> str | None:
    value = float(found[2])
    return f"{found[1]}real({value * 2!r})" if 1e-2 < abs(value) < 100 else None


def _every(pattern: str, new: str) -> Callable[[str], Iterator[str]]:
    """All places among the kernels at once."""

    def apply(text: str) -> Iterator[str]:
        start, end = _kernels(text)
        changed = re.sub(pattern, new, text[start:end])
        if changed != text[start:end]:
            yield text[:start] + changed + text[end:]

    return apply


def _helper(old: str, new: str) -> Callable[[str], Iterator[str]]:
    """A place of the helpers before the kernels."""

    def apply(text: str) -> Iterator[str]:
        if old in text[:_kernels(text)[0]]:
            yield text.replace(old, new, 1)

    return apply


FAULTS = (
    _like(_kinds(parts.FAULTS, "tail left out"), _both(_tail), "edges"),
    _like(_kinds(parts.FAULTS, "last left out"), _both(_last)),
    _like(_kinds(operands.FAULTS, "bias dropped"), _dropped("+", True)),
    _like(_kinds(operands.FAULTS, "weight dropped"), _dropped("*", True)),
    _like(_kinds(operands.FAULTS, "sign flipped"), textual(
        _STEP.format(r"([+-])").replace(r" (\w+);", r" (\w+);"),
        lambda m, k: None if _fed(k, m[1].split()[2]) else f"{m[1]}{m[2]} {'-' if m[3] == '+' else '+'} {m[4]};")),
    _like(_kinds(operands.FAULTS, "operands exchanged"), textual(
        _STEP.format(r"([-/])"), lambda m, k: f"{m[1]}{m[4]} {m[3]} {m[2]};")),
    _like(_kinds(operands.FAULTS, "factor doubled"), textual(r"(\* |\+ |- )real\((-?[\d.e-]+)\)", _constant)),
    _like(_kinds(operands.FAULTS, "bias misplaced"), textual(
        r"(const real \w+ = real\(in[1-9])\[(\w+)\]\);", _index),
        "missing-bias", "one-for-all", "wrong-index", "input-index"),
    _like(_kinds(functions.FAULTS, "activation dropped"), textual(
        r"kw_select\((\w+) < real\(0\), real\(0\), \1\)", lambda m, k: m[1])),
    _like(_kinds(functions.FAULTS, "clamp dropped"), textual(
        r"kw_select\((\w+) [<>] \(?-?real\([\d.]*[1-9][\d.]*\)\)?, \(?-?real\([\d.]+\)\)?, \1\)", lambda m, k: m[1])),
    _like(_kinds(functions.FAULTS, "epsilon dropped"), textual(
        r"^( +const real \w+ = \w+) \+ real\(1e-\d+\);$", lambda m, k: f"{m[1]};")),
    _like(_kinds(functions.FAULTS, "root dropped"), textual(r"kw_sqrt\((\w+)\)", lambda m, k: m[1])),
    _like(_kinds(functions.FAULTS, "other extremum"), _every(
        r"kw_maximum\((\w+), (\w+)\)", r"kw_select(\1 < \2, \1, \2)")),
    _like(_kinds(functions.FAULTS, "unbiased variance"), _helper("squares / count)", "squares / (count - 1))")),
    _like(_kinds(functions.FAULTS, "mean for sum"), _helper("double(origin) + total / count)",
                                                            "double(origin) * count + total)")),
    _like(_kinds(conduct.FAULTS, "result narrow"), textual(
        r"^( +)(out\d\[[^\n]*\]) = (\w+);$", _step_of_round)),
)
