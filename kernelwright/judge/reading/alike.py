"""How alike the programs of two texts are, with comments, names and literals put aside.

A program is the sequence of its syntax: kinds of nodes of the Python part, tokens of the C++ and CUDA texts in it.
Names that a file makes up itself (of variables, functions, classes and attributes) are all one, as are numbers and
strings; names that come from elsewhere (``torch.relu``, ``expf``, ``threadIdx``) stay, since they say what is computed.
Two programs are as alike as their runs of six tokens: of all different runs in either, the share that stands in both
(Jaccard's index over k-grams, as in Schleimer, Wilkerson and Aiken, "Winnowing", 2003, but of all runs, not a sample).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from kernelwright.judge.reading.ctokens import Token
from kernelwright.judge.reading.source import take_apart
from kernelwright.judge.records import Alike, CandidateResult

#: Tokens of a run, and the share of runs from which two programs are told to be alike.
RUN, NEAR = 6, 0.85
#: Others that are told of one candidate.
_MOST = 3
_NAME, _NUMBER, _STRING = "n", "0", "s"
#: Words of C++ and CUDA that are no name of anybody's.
_WORDS_TEXT = (
    "auto bool break case catch char class const constexpr continue default delete do double else enum extern false "
    "float for goto if inline int int32_t int64_t long namespace new nullptr operator private public register return "
    "short signed sizeof size_t static static_cast reinterpret_cast struct switch template this throw true try typedef "
    "typename uint8_t uint32_t uint64_t union unsigned using void volatile while half float2 float4 __half __half2 "
    "__nv_bfloat16 __global__ __device__ __host__ __shared__ __restrict__ __launch_bounds__ __forceinline__ threadIdx "
    "blockIdx blockDim gridDim warpSize")
_WORDS = frozenset(_WORDS_TEXT.split())
_AXES = ("x", "y", "z")
_SKIPPED = (ast.Import, ast.ImportFrom, ast.expr_context, ast.Pass)


@dataclass(frozen=True, slots=True)
class Program:
    """A text's program: its tokens, and the different runs of them."""

    text: str
    tokens: tuple[str, ...]
    runs: frozenset[tuple[str, ...]]


def program_of(text: str) -> Program | None:
    """The program of a Python file with what it holds of C++ and CUDA; None for what is no Python."""
    try:
        source = take_apart(text, None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    functions = {function.name for _, function in source.functions()}
    tokens = tuple(_python(source.tree, functions))
    for kernels in source.kernels:
        tokens += tuple(_native(kernels.tokens, functions))
    runs = {tokens[at:at + RUN] for at in range(max(1, len(tokens) - RUN + 1))}
    return Program(text, tokens, frozenset(runs)) if len(tokens) > 1 else None


def alike(one: Program, other: Program, given: Program | None = None) -> float:
    """The share of all runs of two programs that both have. What a text has that was ``given`` to both is put aside: a
    constructor that both took from the model says nothing."""
    return 1.0 if one.tokens == other.tokens else _shared(_beside(one, given), _beside(other, given))


def _beside(program: Program, given: Program | None) -> frozenset[tuple[str, ...]]:
    return program.runs - given.runs if given is not None else program.runs


def _shared(first: frozenset[tuple[str, ...]], second: frozenset[tuple[str, ...]]) -> float:
    both = len(first & second)
    return both / max(1, len(first) + len(second) - both)


def contained(part: Program, whole: Program) -> float:
    """The share of the first program's runs that the second has, too."""
    return len(part.runs & whole.runs) / max(1, len(part.runs))


def with_alike(results: Sequence[CandidateResult], model: str, model_file: str, known: Sequence[Path] = ()
               ) -> list[CandidateResult]:
    """The results with those texts that each candidate's is near to: other candidates, the model's file, and files that
    are ``known``. Texts are read, and nothing of them decides anything."""
    programs = {result.file: program_of(_read(Path(result.file))) for result in results}
    model_program = program_of(model)
    near_candidates = _near_candidates({file: p for file, p in programs.items() if p is not None}, model_program)
    others = {str(path): program for path in known if (program := program_of(_read(path))) is not None}
    told = []
    for result in results:
        own = programs[result.file]
        found: list[Alike] = []
        if own is not None:
            found += near_candidates.get(result.file, ())
            found += [_within(own, whole, file, "known") for file, whole in others.items()]
            found += [_within(own, model_program, model_file, "problem")] if model_program is not None else []
        near = sorted((a for a in found if a.share >= NEAR), key=lambda a: -a.share)
        told.append(replace(result, alike=tuple(near[:_MOST])))
    return told


def _near_candidates(programs: Mapping[str, Program], model: Program | None) -> dict[str, list[Alike]]:
    """What is near to each candidate among the others. Each pair is held against each other once, and none whose sizes
    alone tell that they are apart."""
    found: dict[str, list[Alike]] = {file: [] for file in programs}
    runs = {file: _beside(program, model) for file, program in programs.items()}
    for (one, first), (other, second) in combinations(programs.items(), 2):
        same = first.tokens == second.tokens
        sizes = sorted((len(runs[one]), len(runs[other])))
        if not same and sizes[0] < NEAR * sizes[1]:
            continue
        share = 1.0 if same else _shared(runs[one], runs[other])
        if share < NEAR:
            continue
        words = "is the same text as" if first.text == second.text else \
            "but for comments, names and literals is" if same else \
            f"shares {_percent(share)} of all runs of {RUN} tokens, names, literals and what the model's file " \
            "has put aside, with"
        found[one].append(Alike(other, share, "candidate", words))
        found[other].append(Alike(one, share, "candidate", words))
    return found


def _within(own: Program, whole: Program, file: str, of: str) -> Alike:
    share = contained(own, whole)
    words = "but for comments, names and literals stands as a whole in" if share == 1 else \
        f"has {_percent(share)} of its runs of {RUN} tokens, names and literals put aside, from"
    return Alike(file, share, of, words)


def _percent(share: float) -> str:
    return f"{min(99, int(100 * share))} %" if share < 1 else "100 %"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:  # it went away while it was judged
        return ""


def _python(tree: ast.Module, functions: Collection[str]) -> Iterator[str]:
    """The nodes of a tree in the order of the text, without imports and docstrings. ``functions``: names of those that
    the file has in another language."""
    own = _made_up(tree).union(functions)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _SKIPPED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.Constant):
            number = isinstance(node.value, int | float | complex) and not isinstance(node.value, bool)
            yield _NUMBER if number else _STRING if isinstance(node.value, str | bytes) else repr(node.value)
            continue
        if isinstance(node, ast.Name):
            yield _NAME if node.id in own else node.id
            continue
        yield type(node).__name__
        if isinstance(node, ast.Attribute):
            yield _NAME if node.attr in own else node.attr
        elif isinstance(node, ast.keyword):
            yield node.arg or ""
        waiting += reversed(list(ast.iter_child_nodes(node)))


def _made_up(tree: ast.Module) -> set[str]:
    """Names that a file binds, and attributes that it sets, but not those that it imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _native(tokens: Sequence[Token], functions: Collection[str]) -> Iterator[str]:
    """The tokens of a C++ or CUDA text. What is called and defined elsewhere keeps its name."""
    for index, token in enumerate(tokens):
        if token.kind == "name":
            following = tokens[index + 1].text if index + 1 < len(tokens) else ""
            kept = token.text in _WORDS or (token.text not in functions and following in ("(", "::"))
            kept = kept or (token.text in _AXES and index > 0 and tokens[index - 1].text == ".")
            yield token.text if kept else _NAME
        elif token.kind != "directive":
            yield {"number": _NUMBER, "string": _STRING, "character": _STRING}.get(token.kind, token.text)
