"""Makes a failing model smaller while it still fails: fewer lines, fewer inputs, smaller and rounder numbers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.fuzz.sketch import Sketch, Statement, names_in

_INTEGER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
_OPTION = re.compile(r", \w+=(?:\([^()]*\)|\[[^\[\]]*\]|[^,()\[\]]+)")
_SUFFIX = re.compile(r"(\.(?:transpose|expand|to)\([^()]*\)|\[[^\[\]]*\])$")


def shrink(sketch: Sketch, fails: Callable[[Sketch], bool], *, seconds: float = 120.0) -> Sketch:
    """The smallest model found on which ``fails`` is still true, in at most about ``seconds``.

    Candidates that do not run on meta tensors are never tried. Deterministic but for the time limit.
    """
    end = time.perf_counter() + seconds
    tried: set[str] = {sketch.text()}
    progress = True
    while progress and time.perf_counter() < end:
        progress = False
        for step in (_fewer_results, _cuts, _skips, _plainer, _smaller_numbers):
            again = True
            while again and time.perf_counter() < end:
                again = False
                for candidate in step(sketch):
                    text = candidate.text()
                    if text in tried or time.perf_counter() >= end:
                        continue
                    tried.add(text)
                    if shapes(candidate) is not None and fails(candidate):
                        sketch, again, progress = candidate, True, True
                        break
    return replace(sketch, title=sketch.title.rstrip(".") + ", shrunk.") if "shrunk" not in sketch.title else sketch


def shapes(sketch: Sketch) -> dict[str, torch.Tensor] | None:
    """Meta tensors of every value of the model by name, or None where it does not run."""
    module = nn.Module()
    space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "self": module}
    try:
        with torch.device("meta"), torch.no_grad():
            for name, text in sketch.members:
                value = eval(text.removeprefix("buffer "), space)
                own = name.removeprefix("self.")
                if text.startswith("buffer "):
                    module.register_buffer(own, value)
                else:
                    setattr(module, own, value)
            for name, text in sketch.inputs:
                space[name] = eval(text, space)
            for statement in sketch.statements:
                exec(str(statement), space)
    except Exception:
        return None
    made = [n for n in space if isinstance(space[n], torch.Tensor)]
    return {n: space[n] for n in made} if set(sketch.returns) <= set(made) else None


def _fewer_results(sketch: Sketch) -> Iterator[Sketch]:
    if len(sketch.returns) > 1:
        for name in sketch.returns:
            yield replace(sketch, returns=(name,), form="one").pruned()
        for name in sketch.returns:
            yield replace(sketch, returns=tuple(n for n in sketch.returns if n != name),
                          form="tuple" if len(sketch.returns) > 2 else "one").pruned()
    elif sketch.form != "one":
        yield replace(sketch, form="one")
    for statement in reversed(sketch.statements):  # an earlier value is returned: what follows is not needed
        for name in statement.results:
            if (name,) != sketch.returns:
                yield replace(sketch, returns=(name,), form="one").pruned()
    pruned = sketch.pruned()
    if pruned != sketch:
        yield pruned


def _cuts(sketch: Sketch) -> Iterator[Sketch]:
    """A value becomes an input, so that what made it is not needed."""
    known = shapes(sketch)
    if known is None:
        return
    for index in range(len(sketch.statements) - 1, -1, -1):
        statement = sketch.statements[index]
        if not statement.results or not any(n in names_in(s.text) for s in sketch.statements[index + 1:]
                                            for n in statement.results):
            continue
        inputs, renamed = list(sketch.inputs), {}
        for name in statement.results:
            tensor = known[name]
            fresh = f"x{max((int(n[1:]) for n, _ in inputs), default=0) + 1}"
            inputs.append((fresh, _maker(tensor)))
            renamed[name] = fresh
        rest = [_renamed(s, renamed) for s in sketch.statements[index + 1:]]
        kept = (*sketch.statements[:index], *rest)
        if set(sketch.returns) & set(statement.results):
            continue
        yield replace(sketch, statements=kept, inputs=tuple(inputs)).pruned()


def _maker(tensor: torch.Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape)) or "()"
    if tensor.dtype == torch.bool:
        return f"torch.rand({sizes}) < 0.5"
    if not tensor.is_floating_point():
        return f"torch.randint(0, 2, {tuple(tensor.shape)})"
    return f"torch.randn({sizes}{'' if tensor.dtype == torch.float32 else f', dtype={tensor.dtype}'})"


def _renamed(statement: Statement, renamed: dict[str, str]) -> Statement:
    text = statement.text
    for name, fresh in renamed.items():
        text = re.sub(rf"\b{name}\b", fresh, text)
    return Statement(statement.results, text)


def _skips(sketch: Sketch) -> Iterator[Sketch]:
    """A line is left out: its results become one of its operands."""
    for index in range(len(sketch.statements) - 1, -1, -1):
        statement = sketch.statements[index]
        before, after = sketch.statements[:index], sketch.statements[index + 1:]
        if not statement.results:
            yield replace(sketch, statements=(*before, *after)).pruned()
        for operand in sorted(n for n in names_in(statement.text) if not n.startswith("self.")):
            renamed = dict.fromkeys(statement.results, operand)
            returns = tuple(renamed.get(n, n) for n in sketch.returns)
            yield replace(sketch, statements=(*before, *(_renamed(s, renamed) for s in after)),
                          returns=returns).pruned()


def _plainer(sketch: Sketch) -> Iterator[Sketch]:
    """Options, views of inputs, and types are left out."""
    for number, (name, text) in enumerate(sketch.inputs):
        known = shapes(replace(sketch, statements=(), returns=()))
        plain = _maker(known[name]) if known else text
        if plain != text and "randint" not in text and ("view" not in text):
            yield _with_input(sketch, number, plain)
        if _SUFFIX.search(text):
            yield _with_input(sketch, number, _SUFFIX.sub("", text))
    everything = sketch.text()
    for dtype in ("torch.float16", "torch.bfloat16", "torch.float64"):
        if dtype in everything:
            yield _everywhere(sketch, lambda t, dtype=dtype: t.replace(f".to({dtype})", "").replace(
                f", dtype={dtype}", "").replace(dtype, "torch.float32"))
    for index, statement in enumerate(sketch.statements):
        for found in _OPTION.finditer(statement.text):
            text = statement.text[:found.start()] + statement.text[found.end():]
            yield _with_statement(sketch, index, text)
    for index, (_, text) in enumerate(sketch.members):
        for found in _OPTION.finditer(text):
            yield _with_member(sketch, index, text[:found.start()] + text[found.end():])


def _smaller_numbers(sketch: Sketch) -> Iterator[Sketch]:
    """Whole numbers become smaller, everywhere at once or in one place; others become round."""
    present = sorted({int(n) for t in _texts(sketch) for n in _INTEGER.findall(t)}, reverse=True)
    for number in present:
        for smaller in dict.fromkeys((1, 2, number // 2, number - 1)):
            if 0 < smaller < number:
                yield _everywhere(sketch, lambda t, n=number, m=smaller: re.sub(rf"(?<![\w.]){n}(?![\w.])", str(m), t))
    for index, text in enumerate(_texts(sketch)):
        for found in (*_INTEGER.finditer(text), *_NUMBER.finditer(text)):
            old = found.group()
            smaller = [n for n in (0, 1, 2, int(old) // 2) if n < int(old)] if old.isdigit() else \
                [n for n in ("1.0", "0.5") if len(n) < len(old)]
            for new in dict.fromkeys(smaller):
                yield _with_text(sketch, index, f"{text[:found.start()]}{new}{text[found.end():]}")


def _texts(sketch: Sketch) -> list[str]:
    return [*(t for _, t in sketch.inputs), *(t for _, t in sketch.members), *(s.text for s in sketch.statements)]


def _with_text(sketch: Sketch, index: int, text: str) -> Sketch:
    if index < len(sketch.inputs):
        return _with_input(sketch, index, text)
    index -= len(sketch.inputs)
    if index < len(sketch.members):
        return _with_member(sketch, index, text)
    return _with_statement(sketch, index - len(sketch.members), text)


def _with_input(sketch: Sketch, index: int, text: str) -> Sketch:
    inputs = list(sketch.inputs)
    inputs[index] = (inputs[index][0], text)
    return replace(sketch, inputs=tuple(inputs))


def _with_member(sketch: Sketch, index: int, text: str) -> Sketch:
    members = list(sketch.members)
    members[index] = (members[index][0], text)
    return replace(sketch, members=tuple(members))


def _with_statement(sketch: Sketch, index: int, text: str) -> Sketch:
    statements = list(sketch.statements)
    statements[index] = Statement(statements[index].results, text)
    return replace(sketch, statements=tuple(statements))


def _everywhere(sketch: Sketch, change: Callable[[str], str]) -> Sketch:
    return replace(
        sketch, inputs=tuple((n, change(t)) for n, t in sketch.inputs),
        members=tuple((n, change(t)) for n, t in sketch.members),
        statements=tuple(Statement(s.results, change(s.text)) for s in sketch.statements))
