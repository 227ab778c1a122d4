"""Tensors that are filled with one number: arithmetic with them, and tensors that they stand beside."""

from __future__ import annotations

import torch

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir import ops as _ops  # noqa: F401  (fills the registry)
from kernelwright.ir.node import Node, constant, make, number_of
from kernelwright.ir.registry import OPERATORS, torch_dtype
from kernelwright.ir.scalar import INTEGERS

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_MOVES = ("reshape", "permute", "expand", "slice", "flip", "unfold", "diagonal")


@rule("a tensor of one number", "add", "sub", "mul", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge",
      law="f(x, a tensor filled with c) = f(x, c)",
      condition="it has the type of x, or no axes where x has any; the result has the shape of x",
      exactness=Exactness.ROUNDING)  # of powers alone: the square of a float is a product
def filled(node: Node, context: Context) -> Node | None:
    for place, (literal, x) in enumerate((node.inputs, node.inputs[::-1])):
        number = number_of(literal)
        if number is None or literal.op != "literal" or x.dtype not in _FLOATS:
            continue
        yields = literal.dtype in _FLOATS and not literal.rank and x.rank > 0  # its type does not count
        if (literal.dtype == x.dtype or yields) and number_of(x) is None and x.shape == node.shape:
            operands = (constant(float(number)), x)
            return make(node.op, *(operands if place == 0 else operands[::-1]))
    return None


@rule("arithmetic of numbers", "cast", *(name for name, operator in OPERATORS.items() if operator.kind == "pointwise"),
      law="f(c, d) is a number", condition="every operand is filled with one number", exactness=Exactness.ROUNDING)
def of_numbers(node: Node, context: Context) -> Node | None:
    numbers = [n for i in node.inputs if (n := number_of(i)) is not None]
    if len(numbers) < len(node.inputs) or node.dtype not in (*_FLOATS, *INTEGERS, "bool"):
        return None
    # In the model's own types: what it rounds, or what overflows, is part of what it says.
    operands = (n if i.op == "constant" else torch.full((1,) * i.rank, n, dtype=torch_dtype(i.dtype))
                for n, i in zip(numbers, node.inputs, strict=True))
    value = node.operator.reference(*operands, **dict(node.attributes))
    return make("literal", value=value.item(), shape=node.shape, dtype=node.dtype)


@rule("numbers beside a tensor", "concatenate", law="concatenate(c, x, c) = pad(x, c)",
      condition="all operands but x are filled with the same number", exactness=Exactness.BITWISE)
def beside(node: Node, context: Context) -> Node | None:
    numbers = [_number_below(i) for i in node.inputs]
    found = {repr(n) for n in numbers if n is not None}
    if numbers.count(None) != 1 or len(found) != 1 or node.dtype not in _FLOATS:
        return None
    place, axis = numbers.index(None), node["axis"]
    x = node.inputs[place]
    before, after = (sum(i.shape[axis] for i in part) for part in (node.inputs[:place], node.inputs[place + 1:]))
    if x.dtype != node.dtype or before + x.shape[axis] + after != node.shape[axis]:
        return None
    amounts = tuple((before, after) if a == axis else (0, 0) for a in range(node.rank))
    return make("pad", x, amounts=amounts, value=float(next(n for n in numbers if n is not None)))


def _number_below(node: Node) -> float | int | bool | None:
    """What a literal is filled with that a node is a view of."""
    while node.op in _MOVES:
        node = node.inputs[0]
    return number_of(node)


FILLED: tuple[Rule, ...] = (of_numbers, filled, beside)

__all__ = ["FILLED"]
