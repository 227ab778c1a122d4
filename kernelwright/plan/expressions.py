"""Scalar expressions: what a kernel computes at one point of its iteration domain.

Target independent; a target turns them into text. Expressions are immutable and
compare by value, so a shared subexpression is found by equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Index:
    """An affine position: ``offset + sum(stride * i)`` over the kernel's outer, then row, axes."""

    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """The load is legal only where ``0 <= index < size`` (padding of a window)."""

    index: Index
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """Element ``index`` of input number ``buffer``; ``otherwise`` where a guard fails."""

    buffer: int
    index: Index
    guards: tuple[Guard, ...] = ()
    otherwise: float = 0.0


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. ``inf``, ``-inf`` and ``nan`` are allowed."""

    value: float


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function of :mod:`kernelwright.ir.scalar`, by name."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """A component of the result of reduction number ``reduction`` of the kernel."""

    reduction: int
    component: int = 0


Expression = Load | Constant | Apply | Reduced


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield every distinct subexpression, arguments before the functions that use them."""
    seen: set[Expression] = set()

    def visit(node: Expression) -> Iterator[Expression]:
        if node in seen:
            return
        seen.add(node)
        if isinstance(node, Apply):
            for argument in node.arguments:
                yield from visit(argument)
        yield node

    yield from visit(expression)
