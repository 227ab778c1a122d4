"""Reading loops that run on several threads (OpenMP): sums into a variable that all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernelwright.judge.reading.ctokens import Token, closing
from kernelwright.judge.reading.source import Kernels, Source
from kernelwright.judge.records import Finding

_PARALLEL = re.compile(r"#\s*pragma\s+omp\s+.*\bparallel\b.*")
_CLAUSE = re.compile(r"\b(?:reduction|private|firstprivate|lastprivate|linear)\s*\(([^)]*)\)")
_GUARDED = re.compile(r"#\s*pragma\s+omp\s+(?:atomic|critical)|\b(?:mutex|lock_guard|atomic)\b")
_UPDATES = ("+=", "-=", "*=", "/=")
#: What tells threads apart.
_THREAD = "omp_get_thread_num"
#: Words before a name that are no type.
_KEYWORDS = ("return", "else", "case", "goto", "new", "delete", "throw")


def read_threads(source: Source) -> Iterator[Finding]:
    """The first shared sum of each parallel loop."""
    for kernels in source.kernels:
        for index, token in enumerate(kernels.tokens):
            if token.kind == "directive" and _PARALLEL.match(token.text):
                yield from _loop(source, kernels, index)


def _loop(source: Source, kernels: Kernels, index: int) -> Iterator[Finding]:
    tokens, pragma = kernels.tokens, kernels.tokens[index]
    body = _statement(tokens, index + 1)
    if not body or _GUARDED.search(" ".join(t.text for t in body)):
        return
    own = {name for found in _CLAUSE.findall(pragma.text) for name in re.findall(r"[A-Za-z_]\w*", found)}
    own |= {t.text for i, t in enumerate(body) if _declared(body, i)}
    varying = _varying(body, pragma)
    for place, token in enumerate(body):
        if token.text not in _UPDATES or not place:
            continue
        start = _target(body, place)
        name, subscript = body[start], body[start + 1:place]
        before = body[start - 1].text if start else ";"
        if name.kind != "name" or before not in (";", "{", "}", ")", "else") or name.text in own | varying or any(
                t.text in varying for t in subscript):
            continue
        line, outer = kernels.place(token.line), kernels.place(pragma.line)
        loop = min(varying - {_THREAD}, default="it")
        what = name.text if not subscript else f"{name.text}[...] at places that do not depend on {loop}"
        sign = "+" if token.text == "-=" else token.text[0]
        fix = f"Run another loop in parallel, one whose variable is a part of the index of {name.text}." if subscript \
            else f"Add reduction({sign}:{name.text}) to the pragma, or declare {name.text} inside the loop."
        yield source.hint("shared-sum", f"Line {line} changes {what}, which all threads of the parallel loop of line "
                          f"{outer} share: updates are lost.", line, fix, name=name.text)
        return


def _target(body: Sequence[Token], place: int) -> int:
    """Where what stands before an assignment begins: a name, or a name with an index."""
    if body[place - 1].text != "]":
        return place - 1
    depth = 0
    for index in range(place - 1, 0, -1):
        depth += (body[index].text == "]") - (body[index].text == "[")
        if not depth:
            return index - 1
    return 0


def _declared(body: Sequence[Token], index: int) -> bool:
    """Whether a name is declared here: ``float a = 0, b = 0``."""
    if not index or body[index].kind != "name" or index + 1 >= len(body) or body[index + 1].text not in (
            "=", ";", ",", "[", "{", "(", ":"):
        return False
    before = body[index - 1]
    if before.text == ",":
        start = next((i for i in range(index, -1, -1) if body[i].text in (";", "{", "}", "(")), -1)
        return any(body[i - 1].text != "," and _declared(body, i) for i in range(start + 2, index))
    return before.text in (">", "*", "&") or (before.kind == "name" and before.text not in _KEYWORDS)


def _varying(body: Sequence[Token], pragma: Token) -> set[str]:
    """The variables of the loops that run in parallel, and what is computed from them."""
    loops = [body[i + 1:] for i, t in enumerate(body) if t.text == "for"]
    collapsed = re.search(r"collapse\s*\(\s*(\d+)", pragma.text)
    names = {loop[next(i for i, t in enumerate(loop) if t.text in ("=", ":")) - 1].text
             for loop in loops[:int(collapsed.group(1)) if collapsed else 1]
             if any(t.text in ("=", ":") for t in loop)} | {_THREAD}
    for _ in range(4):
        for index, token in enumerate(body):
            if token.text == "=" and body[index - 1].kind == "name":
                end = next((i for i in range(index, len(body)) if body[i].text == ";"), len(body))
                if any(t.text in names for t in body[index:end]):
                    names.add(body[index - 1].text)
    return names


def _statement(tokens: Sequence[Token], start: int) -> Sequence[Token]:
    """The block, or the loop, that begins at ``start``."""
    place = start
    while place < len(tokens) and tokens[place].kind == "directive":
        place += 1
    while place + 1 < len(tokens) and tokens[place].text == "for" and tokens[place + 1].text == "(":
        place = closing(tokens, place + 1) + 1
    if place >= len(tokens):
        return ()
    if tokens[place].text == "{":
        return tokens[start:closing(tokens, place) + 1]
    end = next((i for i in range(place, len(tokens)) if tokens[i].text == ";"), len(tokens) - 1)
    return tokens[start:end + 1]
