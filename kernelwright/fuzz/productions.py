"""The table of productions: each adds a line or two to a model. Families stand in modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.fuzz.draw import Draw, Value


@dataclass(frozen=True, slots=True)
class Production:
    """One way to extend a model.

    name: unique. weight: how often it is drawn. ranks: least and most axes of its first operand.
    add: extends the model; raises Refused where it cannot.
    """

    name: str
    weight: float
    ranks: tuple[int, int]
    add: Callable[[Draw, Value], object]


PRODUCTIONS: dict[str, Production] = {}


def production(name: str, weight: float = 1.0, ranks: tuple[int, int] = (0, 7)
               ) -> Callable[[Callable[[Draw, Value], object]], Callable[[Draw, Value], object]]:
    """Register a function of (model, operand) under a name."""

    def register(function: Callable[[Draw, Value], object]) -> Callable[[Draw, Value], object]:
        if name in PRODUCTIONS:
            raise ValueError(f"two productions are called {name!r}")
        PRODUCTIONS[name] = Production(name, weight, ranks, function)
        return function

    return register


def line(name: str, template: str, *, weight: float = 1.0, ranks: tuple[int, int] = (0, 7),
         bits: float | None = None, tame: float | None = None) -> None:
    """Register one line of text over the operand ``{x}``, an axis ``{axis}`` and small numbers.

    bits: magnitude of the result where it is not that of x; tame: the largest magnitude that x may have.
    ``{low}``, ``{high}`` and ``{positive}`` are numbers in [-1, 0], [0, 1.5] and [0.1, 2].
    """

    @production(name, weight, ranks)
    def _add(d: Draw, x: Value) -> None:
        operand = x if tame is None else d.tamed(x, tame)
        d.emit(template.format(x=operand, axis=d.axis(operand) if operand.rank else 0, low=d.real(-1, 0),
                               high=d.real(0, 1.5), positive=d.real(0.1, 2)),
               bits=bits)
