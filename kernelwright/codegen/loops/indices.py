"""Positions and guards as text, the same in every C-like language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelwright.codegen.terms import plus
from kernelwright.plan.expressions import Guard, Index


def index_text(index: Index, names: Sequence[str]) -> str:
    """``index`` as an integer expression of the axes' names."""
    terms = []
    for stride, name in zip(index.strides, names, strict=True):
        if stride:
            terms.append(name if stride == 1 else f"-{name}" if stride == -1 else f"{stride} * {name}")
    return plus(*terms, index.offset)


def guard_text(guards: Iterable[Guard], names: Sequence[str]) -> str:
    """The condition under which a load is legal."""
    parts = []
    for guard in guards:
        position = index_text(guard.index, names)
        parts.append(f"{position} >= 0 && {position} < {guard.size}")
    return " && ".join(parts)
