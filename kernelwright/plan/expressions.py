"""Scalar expressions: what a kernel computes at one point of its iteration domain.

Target independent; a target turns them into text. Expressions are immutable, and equal ones are the same object, as
nodes are: equality is identity, and what several expressions share stands once below all of them. There may be
exponentially many paths to what is used twice at each of many steps, and a chain is as deep as it is long: whoever
goes through expressions does so by :func:`walk` or :func:`replaced`, which visit each one once and do not recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from kernelwright.ir.scalar import PRODUCTS, WHOLE_RESULTS


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


_interned: WeakValueDictionary[tuple, _Interned] = WeakValueDictionary()
_interning = Lock()


class _Interning(type):
    """Building an object of such a class that exists already returns the existing one, in every thread."""

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        new = super().__call__(*arguments, **keywords)
        key = (cls, *new.key())
        with _interning:
            return _interned.setdefault(key, new)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Interned(metaclass=_Interning):
    """What all expressions have.

    axes: bit ``a`` is set where the index or a guard of a load below moves along axis ``a``.
    reduced: whether the result of a reduction is below.
    """

    axes: int = field(init=False, repr=False, default=0)
    reduced: bool = field(init=False, repr=False, default=False)

    def key(self) -> tuple:
        """What tells this expression from others of its class; numbers by their text, as 0.0 == -0.0."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Load(_Interned):
    """Element ``index`` of input number ``buffer``; ``otherwise`` where a guard fails.

    The value is of the kernel's arithmetic, or where ``whole`` a 64-bit integer. ``counts``: every element of the input
    is its own number, so that a target may take the position in place of it.
    """

    buffer: int
    index: Index
    guards: tuple[Guard, ...] = ()
    otherwise: float = 0.0
    whole: bool = False
    counts: bool = False

    def __post_init__(self) -> None:
        moved = 0
        for index in (self.index, *(guard.index for guard in self.guards)):
            for axis, stride in enumerate(index.strides):
                moved |= bool(stride) << axis
        object.__setattr__(self, "axes", moved)

    def key(self) -> tuple:
        return self.buffer, self.index, self.guards, repr(self.otherwise), self.whole, self.counts


@dataclass(frozen=True, slots=True, eq=False)
class Constant(_Interned):
    """A literal. ``inf``, ``-inf`` and ``nan`` are allowed."""

    value: float

    def key(self) -> tuple:
        return (repr(self.value),)


@dataclass(frozen=True, slots=True, eq=False)
class Whole(Constant):
    """A literal of type 64-bit integer."""

    value: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Apply(_Interned):
    """A scalar function of :mod:`kernelwright.ir.scalar`, by name."""

    function: str
    arguments: tuple[Expression, ...]

    def __post_init__(self) -> None:
        moved = 0
        for argument in self.arguments:
            moved |= argument.axes
        object.__setattr__(self, "axes", moved)
        object.__setattr__(self, "reduced", any(argument.reduced for argument in self.arguments))

    def key(self) -> tuple:
        return self.function, *map(id, self.arguments)

    def of(self, arguments: tuple[Expression, ...]) -> Apply:
        """The same of other arguments."""
        return Apply(self.function, arguments)

    def __repr__(self) -> str:
        """Every part below once, by number."""
        numbers: dict[Expression, int] = {}
        parts = []
        for part in walk(self):
            numbers[part] = len(numbers)
            parts.append(f"{part.function}({', '.join(f'${numbers[a]}' for a in part.arguments)})"
                         if isinstance(part, Apply) else repr(part))
        return f"Apply<{'; '.join(parts)}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Element(Apply):
    """The element of input number ``buffer`` whose number is the only argument, a whole number that is within the input
    whatever the kernel loads. The value is of the kernel's arithmetic, or where ``whole`` a 64-bit integer."""

    buffer: int = 0
    whole: bool = False

    def key(self) -> tuple:
        return self.buffer, self.whole, *map(id, self.arguments)

    def of(self, arguments: tuple[Expression, ...]) -> Element:
        """The same input's element at another place."""
        return Element(self.function, arguments, self.buffer, self.whole)


@dataclass(frozen=True, slots=True, eq=False)
class Reduced(_Interned):
    """A component of the result of reduction number ``reduction`` of the kernel."""

    reduction: int
    component: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reduced", True)

    def key(self) -> tuple:
        return self.reduction, self.component


Expression = Load | Constant | Apply | Reduced


def is_whole(expression: Expression) -> bool:
    """Whether the value is a 64-bit integer and not of the kernel's floating type."""
    match expression:
        case Load(whole=whole) | Element(whole=whole):
            return whole
        case Apply(function=function):
            return function in WHOLE_RESULTS
    return isinstance(expression, Whole)


def ends_in_product(value: Expression) -> bool:
    """Whether the last of a value's operations may be a multiplication, negated or rounded: compilers know that a
    product of floats in float64 that is rounded to float32 is one of float32, and fuse that."""
    if isinstance(value, Apply) and value.function in ("neg", "round_float32"):
        return ends_in_product(value.arguments[0])
    return isinstance(value, Apply) and value.function in PRODUCTS


def may_sum_to_minus_zero(value: Expression) -> bool:
    """Whether a sum of such values from +0 on, which is never -0, may be so where compilers fuse products into it: a
    negative product that is too small for its type leaves its sign there. No square is negative."""
    square = isinstance(value, Apply) and (value.function == "square" or (
        value.function == "mul" and value.arguments[0] is value.arguments[1]))
    return ends_in_product(value) and not square


def varies(expression: Expression, axes: Sequence[int]) -> bool:
    """Whether something that the expression loads moves along any of ``axes``."""
    return any(expression.axes >> axis & 1 for axis in axes)


def walk(*roots: Expression, into: Callable[[Apply], bool] | None = None) -> Iterator[Expression]:
    """Yield every distinct expression at and below the roots, arguments before the functions that use them.

    into: whether to go on below a function; if not, it is yielded as if it had no arguments.
    """
    seen: set[Expression] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        expression, ready = stack.pop()
        if ready:
            yield expression
        elif expression not in seen:
            seen.add(expression)
            if isinstance(expression, Apply) and (into is None or into(expression)):
                stack.append((expression, True))
                stack.extend((argument, False) for argument in reversed(expression.arguments) if argument not in seen)
            else:
                yield expression


def buffers_of(*roots: Expression) -> set[int]:
    """The numbers of the inputs that expressions read."""
    return {e.buffer for e in walk(*roots) if isinstance(e, (Load, Element))}


def element(buffer: int, place: Expression, whole: bool) -> Element:
    """The element of an input at a place."""
    return Element("element", (place,), buffer, whole)


def loaded(expression: Expression) -> Load:
    """An operand that lies in memory, where that has been made sure of."""
    assert isinstance(expression, Load), expression
    return expression


def replaced(expression: Expression, change: Callable[[Expression], Expression | None],
             memo: dict[Expression, Expression] | None = None) -> Expression:
    """``expression`` with everything for which ``change`` answers replaced, outermost first.

    memo: what has been replaced already, for several expressions under the same change.
    """
    memo = {} if memo is None else memo
    opened: set[Expression] = set()
    stack = [expression]
    while stack:
        current = stack.pop()
        if current in memo:
            continue
        if isinstance(current, Apply) and current in opened:
            memo[current] = current.of(tuple(memo[argument] for argument in current.arguments))
            continue
        new = change(current)
        if new is None and isinstance(current, Apply):
            opened.add(current)
            stack.append(current)
            stack.extend(reversed(current.arguments))
        else:
            memo[current] = current if new is None else new
    return memo[expression]
