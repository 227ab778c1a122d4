"""Reading kernels for what goes wrong on the device: indices without a guard, barriers that not all threads reach,
exponentials that overflow, indices beyond 32 bits."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kernelwright.judge.reading.ctokens import Function, Token, closing, split_commas
from kernelwright.judge.reading.sizes import known_numbers, value_of
from kernelwright.judge.reading.source import Kernels, Source, fold, number_of
from kernelwright.judge.records import Finding

_EXPONENTIALS = {"exp", "expf", "__expf", "exp2f", "exp2", "__exp2f"}
_DRAWS = {"rand", "randn", "zeros", "ones", "empty", "randint", "full"}


def read_hazards(source: Source) -> Iterator[Finding]:
    """Findings on each kernel."""
    elements = largest_input(source)
    for kernels, function in source.functions():
        if not function.is_device:
            continue
        if function.is_kernel:
            yield from unguarded(source, kernels, function)
            yield from narrow_index(source, kernels, function, elements)
            yield from small_shared(source, kernels, function)
        yield from divergent_barrier(source, kernels, function)
        yield from exponentials(source, kernels, function)


def unguarded(source: Source, kernels: Kernels, function: Function) -> Iterator[Finding]:
    """A kernel whose index comes from block and thread, which stores, and which compares nothing."""
    words = [t.text for t in function.body]
    if not {"blockIdx", "threadIdx", "blockDim"} <= set(words):
        return
    stores = [i for i, t in enumerate(function.body) if t.text == "[" and words[closing(function.body, i) + 1:][:1] in (
        ["="], ["+="])]
    compares = {"if", "for", "while", "?", "min", "assert", "return"} & set(words)
    if stores and not compares:
        token = function.body[stores[0] - 1]
        line = kernels.place(token.line)
        yield source.hint("no-guard", f"The kernel {function.name} stores at an index from blockIdx and threadIdx on "
                                      f"line {line} "
                          "and never compares it with a length: threads of the last block reach beyond the end.", line,
                          "Return where the index is not below the number of elements.", function=function.name)


def thread_names(function: Function) -> set[str]:
    """Variables whose values differ between the threads of a block, as far as assignments show it."""
    names = {"threadIdx"}
    statements = _statements(function.body)
    for _ in range(4):
        before = len(names)
        for statement in (part for s in statements for part in split_commas(s)):
            equal = next((i for i, t in enumerate(statement) if t.text == "="), None)
            if equal and statement[equal - 1].kind == "name" and _mentions(statement[equal:], names):
                names.add(statement[equal - 1].text)
        if len(names) == before:
            break
    return names


def _mentions(tokens: Sequence[Token], names: set[str]) -> bool:
    """Whether one of the names occurs, as a variable and not as a member of one."""
    return any(t.text in names and (i == 0 or tokens[i - 1].text not in (".", "->")) for i, t in enumerate(tokens))


def _statements(body: Sequence[Token]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in body:
        if token.text in (";", "{", "}"):
            parts.append([])
        else:
            parts[-1].append(token)
    return [p for p in parts if p]


def divergent_barrier(source: Source, kernels: Kernels, function: Function) -> Iterator[Finding]:
    """``__syncthreads()`` under a condition that differs between threads."""
    if not any(t.text == "__syncthreads" for t in function.body):
        return
    found: list[tuple[Token, Token]] = []
    _walk(function.body, 0, len(function.body), None, thread_names(function), found)
    for token, condition in found[:1]:
        line = kernels.place(token.line)
        yield source.hint("divergent-barrier", f"The __syncthreads() of line {line} stands under the condition of line "
                          f"{kernels.place(condition.line)}, which differs between threads; all threads of a block "
                          "must reach it.",
                          line, "Take the barrier out of the condition.", function=function.name)


def _walk(body: Sequence[Token], index: int, end: int, under: Token | None, varying: set[str],
          found: list[tuple[Token, Token]]) -> None:
    """Visit the statements of ``body[index:end]``; ``under`` is the innermost varying condition they stand under."""
    while index < end:
        token = body[index]
        if token.text == "__syncthreads" and under is not None:
            found.append((token, under))
        if token.text in ("if", "for", "while", "switch") and index + 1 < end:
            opening = index + 1 if body[index + 1].text == "(" else index + 2  # if constexpr (...)
            if opening >= end or body[opening].text != "(":
                index += 1
                continue
            close = closing(body, opening)
            condition = body[opening + 1:close]
            if token.text == "for":  # only the middle part decides how often
                semicolons = [i for i, t in enumerate(condition) if t.text == ";"]
                middle = condition[semicolons[0] + 1:semicolons[1]] if len(semicolons) == 2 else []
                condition = _tight(middle, condition, varying)
            inner = token if _mentions(condition, varying) else under
            index = _branch(body, close + 1, end, inner, varying, found)
            while index < end and body[index].text == "else":
                if index + 1 < end and body[index + 1].text == "if":
                    close = closing(body, index + 2)
                    inner = body[index + 1] if _mentions(body[index + 3:close], varying) else inner
                    index = _branch(body, close + 1, end, inner, varying, found)
                else:
                    index = _branch(body, index + 1, end, inner, varying, found)
            continue
        index += 1


def _tight(condition: Sequence[Token], whole: Sequence[Token], varying: set[str]) -> Sequence[Token]:
    """The condition of a for loop, without its own variable where that starts alike in all threads."""
    name = next((whole[i - 1].text for i, t in enumerate(whole) if t.text == "=" and i), "")
    start = next((i for i, t in enumerate(whole) if t.text == "="), len(whole))
    stop = next((i for i, t in enumerate(whole) if t.text == ";"), len(whole))
    return condition if _mentions(whole[start:stop], varying) else [t for t in condition if t.text != name]


def _branch(body: Sequence[Token], index: int, end: int, under: Token | None, varying: set[str],
            found: list[tuple[Token, Token]]) -> int:
    """Visit one statement or block; return where it ends."""
    if index < end and body[index].text == "{":
        close = closing(body, index)
        _walk(body, index + 1, close, under, varying, found)
        return close + 1
    stop = index
    depth = 0
    while stop < end and not (body[stop].text == ";" and depth == 0):
        depth += (body[stop].text in "({[") - (body[stop].text in ")}]")
        if body[stop].text == "}" and depth == 0:
            break
        stop += 1
    _walk(body, index, min(stop + 1, end), under, varying, found)
    return stop + 1


def exponentials(source: Source, kernels: Kernels, function: Function) -> Iterator[Finding]:
    """A sum of exponentials of values from which nothing was subtracted."""
    body = function.body
    differences = {s[i - 1].text for s in _statements(body) for i, t in enumerate(s)
                   if t.text in ("=", "-=") and i and (t.text == "-=" or any(u.text == "-" for u in s[i:]))}
    exponents = {s[i - 1].text for s in _statements(body) for i, t in enumerate(s)
                 if t.text == "=" and i and any(u.text in _EXPONENTIALS for u in s[i:i + 3])}
    for index, token in enumerate(body):
        if token.text not in _EXPONENTIALS or index + 1 >= len(body) or body[index + 1].text != "(":
            continue
        argument = body[index + 2:closing(body, index + 1)]
        if any(t.text in ("-", "-=") for t in argument) or any(t.text in differences for t in argument):
            continue
        start = next((i for i in range(index, -1, -1) if body[i].text in (";", "{", "}", ")") and i < index), -1)
        statement = [t.text for t in body[start + 1:index]]
        target = statement[-2] if len(statement) >= 2 and statement[-1] == "=" else ""
        if "+=" in statement or statement[1:4:2] == ["=", "+"] or (target in exponents and _is_added(body, target)):
            line = kernels.place(token.line)
            yield source.hint("exp-without-maximum", f"Line {line} adds {token.text}(...) of values from which no "
                                                     "maximum was "
                              "subtracted; it overflows float32 above 88.", line,
                              "Find the maximum first, subtract it before exp, and add it back after log.",
                              function=function.name)
            return


def _is_added(body: Sequence[Token], name: str) -> bool:
    """Whether a variable is added to another in some statement."""
    return any(token.text == "+=" and any(t.text == name for t in statement[i:])
               for statement in _statements(body) for i, token in enumerate(statement))


def largest_input(source: Source) -> int | None:
    """The most elements of a tensor that get_inputs draws, where its sizes are plain."""
    counts: list[int] = []
    for node in source.problem.body if source.problem else []:
        if isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _DRAWS:
                    first = call.args[0] if call.args else None
                    sizes = first.elts if isinstance(first, (ast.Tuple, ast.List)) else call.args
                    values = [fold(size, source.constants) for size in sizes]
                    product = 1
                    for value in values:
                        product *= value or 0
                    counts.append(product)
    return max(counts, default=None)


def narrow_index(source: Source, kernels: Kernels, function: Function, elements: int | None) -> Iterator[Finding]:
    """A 32-bit index into a tensor of 2^31 elements or more."""
    if elements is None or elements < 2**31:
        return
    for statement in _statements(function.body):
        words = [t.text for t in statement]
        wide = {"size_t", "int64_t", "long"} & set(words)
        if {"blockIdx", "blockDim"} <= set(words) and "int" in words[:3] and not wide:
            line = kernels.place(statement[0].line)
            yield source.hint("narrow-index", f"Line {line} computes an index in 32 bits, and an input has {elements} "
                                              "elements.",
                              line, "Use int64_t for the index, and widen blockIdx.x before the "
                                    "product.", elements=elements)
            return


def small_shared(source: Source, kernels: Kernels, function: Function) -> Iterator[Finding]:
    """A shared array of fixed length that is indexed by the thread, in a kernel launched with more threads."""
    numbers = known_numbers(kernels)
    body = function.body
    threads = {"threadIdx"} | {s[i - 1].text for s in _statements(body) for i, t in enumerate(s) if t.text == "="
                               and [u.text for u in s[i + 1:]] == ["threadIdx", ".", "x"]}
    for index, token in enumerate(body):
        if token.text != "__shared__" or (index and body[index - 1].text == "extern"):
            continue
        opening = next((i for i in range(index, min(index + 12, len(body))) if body[i].text == "["), None)
        if opening is None or body[opening + 2].text != "]" or body[closing(body, opening) + 1].text == "[":
            continue
        length = number_of(body[opening + 1]) or numbers.get(body[opening + 1].text)
        name = body[opening - 1].text
        direct = any(t.text == name and body[i + 1].text == "[" and body[i + 2].text in threads
                     and body[closing(body, i + 1) - 1].text in (*threads, "x") for i, t in enumerate(body[:-2]))
        for launch in kernels.launches:
            block = value_of(launch.configuration[1], numbers) if launch.name == function.name and len(
                launch.configuration) > 1 else None
            if length and block and direct and block > length:
                line = kernels.place(token.line)
                yield source.hint("shared-memory", f"The shared array {name} (line {line}) has {length} entries, and "
                                                   f"{function.name} is "
                                  f"launched with {block} threads a block that index it.", line,
                                  "Give the array the block's size.", entries=length, threads=block)
