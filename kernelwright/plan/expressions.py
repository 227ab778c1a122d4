"""Scalar expressions: what a kernel computes at one point of its iteration domain.

Target independent; a target turns them into text. Expressions are immutable and
compare by value, so a shared subexpression is found by equality. Numbers compare by what they are to a
kernel: 0.0 and -0.0 are two, and NaN is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kernelwright.ir.scalar import WHOLE_RESULTS


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
    """Element ``index`` of input number ``buffer``; ``otherwise`` where a guard fails.

    The value is of the kernel's arithmetic, or where ``whole`` a 64-bit integer.
    """

    buffer: int
    index: Index
    guards: tuple[Guard, ...] = ()
    otherwise: float = field(default=0.0, compare=False)
    whole: bool = False
    identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", repr(self.otherwise))


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. ``inf``, ``-inf`` and ``nan`` are allowed."""

    value: float = field(compare=False)
    identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", repr(self.value))


@dataclass(frozen=True, slots=True)
class Whole(Constant):
    """A literal of type 64-bit integer. It never equals a Constant of the same value."""

    value: int = field(compare=False)


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


def is_whole(expression: Expression) -> bool:
    """Whether the value is a 64-bit integer and not of the kernel's floating type."""
    match expression:
        case Load(whole=whole):
            return whole
        case Apply(function=function):
            return function in WHOLE_RESULTS
    return isinstance(expression, Whole)


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


def replaced(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """``expression`` with every node for which ``change`` answers replaced, outermost first."""
    memo: dict[Expression, Expression] = {}

    def visit(node: Expression) -> Expression:
        if node not in memo:
            new = change(node)
            if new is None:
                new = Apply(node.function, tuple(map(visit, node.arguments))) if isinstance(node, Apply) else node
            memo[node] = new
        return memo[node]

    return visit(expression)
