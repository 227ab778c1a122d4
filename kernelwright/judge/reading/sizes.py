"""Reading sizes: macros, constants and literals of C++ and CUDA texts that are sizes of the problem."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from kernelwright.judge.reading.ctokens import Function, Token, split_commas
from kernelwright.judge.reading.source import Kernels, Source, fold, number_of
from kernelwright.judge.records import Finding

#: A name of one of these words is a choice of the kernel's, not a size of the problem.
_TILE_WORDS = re.compile(r"BLOCK|THREAD|TILE|WARP|LANE|VEC|UNROLL|CHUNK|STAGE|PAD|SMEM|SHARED|MASK|ITEMS|GRID|"
                         r"TPB|BX|BY|BZ|BM|BN|BK",
                         re.IGNORECASE)
_SIZE_WORDS = re.compile(r"^(?:[NCHWMKDLSB]|(?:IN|OUT)_?[CHWDF]|.*(?:BATCH|CHANNEL|HEIGHT|WIDTH|DEPTH|FEATURE|HIDDEN|"
                         r"KERNEL_SIZE|"
                         r"SEQ|INPUT|OUTPUT|DIM|LENGTH|HEADS|CLASSES|GROUPS|_SIZE).*)$", re.IGNORECASE)
_DEFINE = re.compile(r"#\s*define\s+(\w+)\s+\(?\s*(\d+)[uUlL]*\s*\)?\s*(?://.*|/\*.*)?$")


def frozen_sizes(source: Source) -> Iterator[Finding]:
    """Macros, constants and literals in index arithmetic that are sizes of the problem. Silent where shapes are
    checked."""
    if _checks_shapes(source):
        return
    problem = problem_numbers(source)
    found: list[tuple[int, str]] = []
    for kernels in source.kernels:
        for name, value, line, said in constants(kernels):
            if value < 2 or _TILE_WORDS.search(name):
                continue
            known = value in problem and (_SIZE_WORDS.match(name)
                                          or value not in (2, 4, 8, 32, 64, 128, 256, 512, 1024))
            if known or (source.problem is None and _SIZE_WORDS.match(name)):
                found.append((kernels.place(line), said))
        for function in kernels.functions:
            if function.is_device:
                found += [(kernels.place(t.line), f"{t.text} in {function.name}") for t in _literals(function, problem)]
    if found:
        line = min(found)[0]
        said = ", ".join(dict.fromkeys(words for _, words in sorted(found)[:6]))
        yield source.hint("frozen-size", f"Sizes of the problem stand fixed in the text ({said}): the result is right "
                                         "for these "
                          "sizes only.", line, "Pass the sizes as arguments, from the tensors' shapes.",
                          lines=sorted({line for line, _ in found}))


def problem_numbers(source: Source) -> set[int]:
    """Whole numbers that are sizes of the problem: its named ones and those in get_inputs and get_init_inputs."""
    numbers = set(source.constants.values())
    for node in source.problem.body if source.problem else []:
        if isinstance(node, ast.FunctionDef) and node.name in ("get_inputs", "get_init_inputs"):
            numbers |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int}
    return {n for n in numbers if n > 1}


def _literals(function: Function, problem: set[int]) -> Iterator[Token]:
    """Numbers in products and remainders of a kernel that are sizes of the problem and no power of two."""
    body = function.body
    for index, token in enumerate(body):
        value = number_of(token)
        if value is None or value not in problem or value < 5 or value & (value - 1) == 0:
            continue
        beside = {body[index - 1].text if index else "", body[index + 1].text if index + 1 < len(body) else ""}
        if beside & {"*", "/", "%", "<"}:
            yield token


def _checks_shapes(source: Source) -> bool:
    """Whether the candidate compares shapes with what it was made for."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare) and any(isinstance(n, ast.Attribute) and n.attr in ("shape", "size", "numel")
                                                 for n in ast.walk(node)):
            return True
    for kernels in source.kernels:
        text = " ".join(t.text for t in kernels.tokens)
        if re.search(r"(?:TORCH_CHECK|AT_ASSERTM?|assert|if) \([^;]*\b(?:size|sizes|numel) \([^;]*(?:==|!=)", text):
            return True
    return False


def known_numbers(kernels: Kernels) -> dict[str, int]:
    """Macros and constants of a text that are whole numbers."""
    numbers = {name: value for name, value, _, _ in constants(kernels)}
    return numbers


def constants(kernels: Kernels) -> Iterator[tuple[str, int, int, str]]:
    """Each macro or constant that is a whole number: name, value, line in the text, and how it is said."""
    for token in kernels.tokens:
        match = _DEFINE.match(token.text) if token.kind == "directive" else None
        if match:
            yield match.group(1), int(match.group(2)), token.line, f"#define {match.group(1)} {match.group(2)}"
    tokens = kernels.tokens
    for index, token in enumerate(tokens[:-3]):
        if token.text not in ("constexpr", "const") or (index and tokens[index - 1].text == "("):
            continue
        end = _declaration_end(tokens, index)
        if end is None:
            continue
        kind = " ".join(t.text for t in tokens[index:end])
        for words in split_commas(tokens[index:end]):
            value = number_of(words[-1]) if len(words) > 2 and words[-2].text == "=" else None
            if value is not None and words[-3].kind == "name" and "*" not in kind.split("=")[0]:
                yield words[-3].text, value, words[-3].line, f"{token.text} {words[-3].text} = {value}"


def _declaration_end(tokens: Sequence[Token], index: int) -> int | None:
    """The semicolon of a declaration that begins at ``index``; None where it is a parameter or has braces."""
    depth = 0
    for place in range(index, len(tokens)):
        text = tokens[place].text
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if depth < 0 or text in ("{", "}"):
            return None
        if text == ";" and depth == 0:
            return place
    return None


def value_of(tokens: Sequence[Token], numbers: dict[str, int]) -> int | None:
    """The value of an expression of numbers and known names (also ``dim3(16, 16)``), or None."""
    text = " ".join(t.text for t in tokens)
    dim = re.fullmatch(r"dim3 (?:\w+ )?[({] (.*) [)}]", text)
    parts = dim.group(1).split(" , ") if dim else [text]
    product = 1
    for part in parts:
        part = re.sub(r"\bsizeof \( (float|int|double) \)", lambda m: "8" if m.group(1) == "double" else "4", part)
        try:
            value = fold(ast.parse(re.sub(r"(\d)[uUlL]+\b", r"\1", part), mode="eval").body, numbers)
        except (SyntaxError, ValueError):
            return None
        if value is None:
            return None
        product *= value
    return product
