"""Ranges: bounds of values that hold for every input, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, number_of
from kernelwright.ir.scalar import FUNCTIONS

Range = tuple[float, float]
_DEEPEST = 12
_FLOATS = ("float16", "bfloat16", "float32", "float64")
#: What a result in 16 bits may be off, of itself, and the least that it is off by no more.
_ROUNDING, _LEAST = 2.0**-8, 2.0**-14
_PASS = ("reshape", "permute", "expand", "slice", "amax", "amin", "mean", "max_pool", "adaptive_average_pool")


def value_range(node: Node) -> Range:
    """Closed bounds of a node's finite values (NaN is outside every statement about ranges)."""
    return _range(node, _DEEPEST, {})


def _range(node: Node, depth: int, known: dict[tuple[Node, int], Range]) -> Range:
    """The bounds as far as ``depth`` operators below the node tell."""
    if (node, depth) not in known:
        known[node, depth] = _bounds(node, lambda operand: _range(operand, depth - 1, known), depth)
    return known[node, depth]


def _bounds(node: Node, below: Callable[[Node], Range], depth: int) -> Range:
    if (number := number_of(node)) is not None:
        return (float(number), float(number))
    if depth and node.op == "cast" and node.dtype in ("float32", "float64") and node.inputs[0].dtype in _FLOATS[:-1]:
        return below(node.inputs[0])  # without rounding
    if depth == 0 or node.kind in ("leaf", "opaque"):
        return (-inf, inf)
    if node.op in _PASS:
        return below(node.inputs[0])
    if node.op == "softmax":
        return (0.0, 1.0)
    if node.kind != "pointwise":
        return (-inf, inf)
    low, high = below(node.inputs[0])
    if node.op in ("clamp_min", "maximum"):
        other = below(node.inputs[1])
        return max(low, other[0]), max(high, other[1])
    if node.op in ("clamp_max", "minimum"):
        other = below(node.inputs[1])
        return min(low, other[0]), min(high, other[1])
    if node.op == "relu":
        return max(low, 0.0), max(high, 0.0)
    if node.op == "neg":
        return -high, -low
    if node.op in ("add", "sub", "mul", "div") and node.dtype in _FLOATS:
        return _arithmetic(node.op, (low, high), below(node.inputs[1]))
    return FUNCTIONS[node.op].range if node.op in FUNCTIONS else (-inf, inf)


def _arithmetic(op: str, one: Range, two: Range) -> Range:
    """Bounds of a sum, a difference, a product or a quotient, as wide as rounding may make them in 16 bits."""
    if op == "div":
        if two[0] <= 0.0 <= two[1]:
            return -inf, inf
        op, two = "mul", (1.0 / two[1], 1.0 / two[0])
    if op == "sub":
        op, two = "add", (-two[1], -two[0])
    if op == "add":
        ends = (one[0] + two[0], one[1] + two[1])
    else:
        products = [a * b for a in one for b in two]
        ends = (min(products), max(products)) if not any(map(isnan, products)) else (-inf, inf)
    # inf - inf says nothing.
    low, high = (-inf if isnan(ends[0]) else ends[0]), (inf if isnan(ends[1]) else ends[1])
    low = low - _ROUNDING * abs(low) if abs(low) < inf else low
    high = high + _ROUNDING * abs(high) if abs(high) < inf else high
    return (0.0 if 0.0 < low < _LEAST else low), (0.0 if -_LEAST < high < 0.0 else high)


@rule("clamp that never acts", "relu", "clamp_min", "clamp_max", "abs",
      law="clamp(x, a, b) = x where a <= x <= b for every input", condition="the range of x is proved",
      exactness=Exactness.BITWISE, keeps_kinks=False)  # at a bound the clamp has a derivative of its own
def redundant_clamp(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    low, high = value_range(x)
    if node.op in ("relu", "abs"):
        return x if (low >= 0.0 and node.op == "relu") or low > 0.0 else None
    if node.inputs[1].op != "constant":
        return None
    bound = node.inputs[1]["value"]
    return x if (low >= bound if node.op == "clamp_min" else high <= bound) else None


RANGES: tuple[Rule, ...] = (redundant_clamp,)
