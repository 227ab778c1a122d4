"""Index text: terms of integers joined without what adds nothing, so that ``a + 0`` and ``b * 1`` stand in no kernel.

Numbers here are plain literals. One with a suffix (``1LL``) says how wide a product is, and stays.
"""

from __future__ import annotations

import re

# A product of names and numbers, and what it may be of before it: nothing else of the same product.
_CHAIN = re.compile(r"(?:(?<=[(\[{,;?:])|(?<=[-+=<>,;?:] )|(?<=return )|^)(?:[\w.]+ [*/%] )*[\w.]+$")
_FACTOR = re.compile(r" [*/%] (?:\w+|@[A-Z][A-Z0-9_]*@)(?![\w.(\[@])")
_OPENS = re.compile(r"(?:^|[(\[{,;?:]|[=<>,;?:] |return )$")
_OPENS_PRODUCT = re.compile(r"(?:^|[(\[{,;?:]|[-+=<>,;?:] |return )$")
_IN_PARENTHESES = re.compile(r"(?<![\w>)\]])(?<!if )(?<!while )(?<!for )(?<!switch )\((\w+)$")
_CAST = "static_cast<int>("
_REACH = 200  # characters before a value in which its term begins


def plus(*terms: str | int) -> str:
    """The sum of terms, of which zeros are left out; a term that begins with a minus is subtracted."""
    texts = [text for term in terms if (text := str(term)) != "0"]
    if not texts:
        return "0"
    return texts[0] + "".join(f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in texts[1:])


def minus(term: str, other: str) -> str:
    """A term without another, a name or a number."""
    return term if other == "0" else f"{term} - {other}"


def times(term: str, factor: int, suffix: str = "") -> str:
    """A term times a number. term: a product, a name or a call. suffix: of the number, where it widens the product."""
    if factor == 0 or term == "0":
        return "0"
    if term.isdecimal():
        return f"{int(term) * factor}{suffix}"
    if factor < 0:
        return f"-{times(term, -factor, suffix)}"
    return f"{term} * {factor}{suffix}" if factor != 1 or suffix else term


def over(term: str, divisor: int, suffix: str = "") -> str:
    """A term divided by a number."""
    return term if divisor == 1 or term == "0" else f"{term} / {divisor}{suffix}"


def modulo(term: str, divisor: int, suffix: str = "") -> str:
    """The rest of a term that is divided by a number."""
    return "0" if divisor == 1 or term == "0" else f"{term} % {divisor}{suffix}"


def grouped(text: str) -> str:
    """A text as one operand: in parentheses, but a name or a number alone."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def joined(before: str, value: str, after: str) -> tuple[str, str, str]:
    """A value between the texts around it, without what it adds nothing to: a 0 that is added, a 1 that is multiplied
    or divided by, the 0 that is left of ``% 1`` and of what it is multiplied with. What is no term of an expression,
    such as a part of a name or a number with a suffix, stays.
    """
    start = max(0, len(before) - _REACH)
    tail, value, after = _joined(before[start:], value, after)
    return before[:start] + tail, value, after


def _joined(before: str, value: str, after: str) -> tuple[str, str, str]:
    if value not in ("0", "1") or re.match(r"[\w.@\[]", after) or not re.search(r"[\s(\[{]$|^$", before):
        return before, value, after
    if value == "1":
        if before.endswith((" * ", " / ")):
            return _bare(before[:-3], "", after)
        if before.endswith(" % ") and (chain := _CHAIN.search(before[:-3])):
            return _joined(before[:chain.start()], "0", after)
        if after.startswith(" * ") and _OPENS_PRODUCT.search(before):
            return before, "", after[3:]
        return before, value, after
    while _OPENS_PRODUCT.search(before) and (factor := _FACTOR.match(after)):
        after = after[factor.end():]
    if before.endswith(" * ") and (chain := _CHAIN.search(before[:-3])):
        return _joined(before[:chain.start()], "0", after)
    if before.endswith(_CAST) and after.startswith(")"):
        return _joined(before.removesuffix(_CAST), "0", after[1:])
    if before.endswith((" + ", " - ")) and not re.match(r" [*/%]", after):
        return _bare(before[:-3], "", after)
    if after.startswith(" + ") and _OPENS.search(before):
        return before, "", after[3:]
    return before, value, after


def _bare(before: str, value: str, after: str) -> tuple[str, str, str]:
    """The texts without parentheses around a name alone, between which something was left out."""
    if after.startswith(")") and (found := _IN_PARENTHESES.search(before)):
        return before[:found.start()] + found[1], value, after[1:]
    return before, value, after
