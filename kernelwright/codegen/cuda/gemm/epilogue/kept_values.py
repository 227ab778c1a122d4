"""What passes over a position's channels leave for each other, in a contraction's epilogue that reduces them.

A subtile has one number for each element. As it is read for the last time as what it is, a pass may put there what the
later ones compute of it: of a softmax, sums with their bias as their maximum is found, then exponentials as these are
added up. What is written is what is computed, so that no result changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.plan.expressions import Apply, Constant, Expression, Reduced, is_whole, replaced, walk

#: What stands for an element of a subtile.
SUM = Reduced(0)
#: Functions of an instruction or two; of others each counts as so many. From how many on a write to the subtile pays.
LIGHT, _HEAVY, _WORTH = frozenset({"add", "sub", "mul", "neg", "abs", "relu", "maximum", "minimum"}), 5, 3


def kept(root: Expression, later: Sequence[Expression], least: int = _WORTH) -> Expression | None:
    """The largest part of ``root`` through which alone ``later`` expressions read the subtile, where one is worth
    it."""
    used = [expression for expression in later if reads(expression)]
    for part in reversed([*walk(root)]) if used else ():
        if isinstance(part, Apply) and not is_whole(part) and reads(part) and _weight(part) >= least \
                and not any(reads(put(expression, part, Constant(0.0))) for expression in used):
            return part
    return None


def put(expression: Expression, part: Expression, there: Expression = SUM) -> Expression:
    """``expression`` with something else for ``part``."""
    return replaced(expression, lambda node: there if node == part else None)


def reads(expression: Expression) -> bool:
    """Whether an expression reads the subtile."""
    return any(part == SUM for part in walk(expression))


def _weight(expression: Expression) -> int:
    return sum(1 if part.function in LIGHT else _HEAVY for part in walk(expression) if isinstance(part, Apply))
