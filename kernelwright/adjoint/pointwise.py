"""Adjoints of pointwise operators: the gradient times the derivative, summed over what was broadcast.

What PyTorch computes of 16-bit values it computes in float32 and rounds once: so does a rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, pi, sqrt

from kernelwright.adjoint.table import (
    ADJOINTS,
    FLOATS,
    NoAdjoint,
    Operand,
    add,
    apply,
    div,
    mul,
    named,
    neg,
    sub,
    summed_to,
    where,
    zeros,
)
from kernelwright.algebra.build import NARROW
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make

#: From the gradient, the result and the inputs, what each input gets, in the result's shape; None of nothing.
Terms = Callable[..., Sequence[Node | None]]
#: Constant between jumps, where PyTorch gives zeros.
STEPS = ("sign", "floor", "ceil", "round", "trunc")


def _one(derivative: Callable[[Node, Node, Node], Node]) -> Terms:
    """Of a function of its first input; the others are numbers."""
    return lambda g, y, x, *_: (derivative(g, y, x),)


def _squared(x: Node) -> Node:
    return apply("square", x)


def _power(g: Node, y: Node, x: Operand, n: Operand) -> Sequence[Node | None]:
    """d x^n = n x^(n - 1), and zero where n = 0; d n^x = y log n, and zero where n = 0 and x >= 0."""
    by_base = by_exponent = None
    if isinstance(x, Node):
        if isinstance(n, Node):
            by_base = where(apply("eq", n, 0.0), 0.0, mul(g, mul(n, apply("pow", x, sub(n, 1.0)))))
        elif n == 0:
            by_base = zeros(g)
        else:
            by_base = mul(g, mul(n, apply("pow", x, n - 1.0)) if n != 2 else mul(2.0, x))
    if isinstance(n, Node):
        grown = mul(y, apply("log", x) if isinstance(x, Node) else log(x) if x > 0 else 0.0)
        if isinstance(x, Node):
            grown = where(apply("logical_and", apply("eq", x, 0.0), apply("ge", n, 0.0)), 0.0, grown)
        by_exponent = mul(g, grown)
    return by_base, by_exponent


def _quotient(g: Node, y: Node, x: Operand, divisor: Operand) -> Sequence[Node | None]:
    return div(g, divisor), mul(neg(g), div(div(x, divisor), divisor)) if isinstance(divisor, Node) else None


def _extremum(larger: bool, number_first: bool = False) -> Terms:
    """Of two the one that is chosen gets the gradient; equal ones get half of it each."""
    first, second = ("lt", "gt") if larger else ("gt", "lt")

    def terms(g: Node, y: Node, a: Node, b: Node) -> Sequence[Node]:
        shared = where(apply("eq", a, b), div(g, 2.0), g)
        return where(apply(first, a, b), 0.0, shared), where(apply(second, a, b), 0.0, shared)

    return terms


def _number(larger: bool) -> Terms:
    """fmax and fmin: the first of equal ones, and a number before NaN."""

    def terms(g: Node, y: Node, a: Node, b: Node) -> Sequence[Node]:
        is_first = apply("logical_or", apply("ge" if larger else "le", a, b), apply("ne", b, b))
        return where(is_first, g, 0.0), where(is_first, 0.0, g)

    return terms


def _gelu_erf(g: Node, y: Node, x: Node) -> Node:
    """Phi(x) + x phi(x)."""
    cumulative = mul(0.5, add(1.0, apply("erf", mul(x, sqrt(0.5)))))
    density = mul(apply("exp", mul(_squared(x), -0.5)), 1.0 / sqrt(2.0 * pi))
    return mul(g, add(cumulative, mul(x, density)))


def _gelu_tanh(g: Node, y: Node, x: Node) -> Node:
    beta, kappa = sqrt(2.0 / pi), 0.044715
    squared = _squared(x)
    inner = apply("tanh", mul(beta, add(x, mul(kappa, mul(squared, x)))))
    left = mul(0.5, add(1.0, inner))
    right = mul(mul(mul(0.5, x), sub(1.0, _squared(inner))), mul(beta, add(1.0, mul(3.0 * kappa, squared))))
    return mul(g, add(left, right))


def _silu(g: Node, y: Node, x: Node) -> Node:
    gate = apply("sigmoid", x)
    return mul(g, mul(gate, add(1.0, mul(x, sub(1.0, gate)))))


def _mish(g: Node, y: Node, x: Node) -> Node:
    inner = apply("tanh", apply("softplus", x, 1.0, 20.0))
    return mul(g, add(inner, mul(mul(x, apply("sigmoid", x)), sub(1.0, _squared(inner)))))


def _hardswish(g: Node, y: Node, x: Node) -> Node:
    slope = mul(g, add(div(x, 3.0), 0.5))
    return where(apply("le", x, -3.0), 0.0, where(apply("lt", x, 3.0), slope, g))


def _none(y: Node) -> Sequence[Node]:
    raise NoAdjoint(named(y))


def _by_logarithm(g: Node, a: Operand, b: Operand) -> Sequence[Node | None]:
    """log b, which nothing is multiplied by that is zero, and zero where a is and b is not above zero; a / b."""
    by_factor = None
    if isinstance(a, Node):
        by_factor = apply("xlogy", g, b)
        at_most = apply("le", b, 0.0) if isinstance(b, Node) else b <= 0
        if isinstance(at_most, Node):
            by_factor = where(apply("logical_and", apply("eq", a, 0.0), at_most), 0.0, by_factor)
        elif at_most:
            by_factor = where(apply("eq", a, 0.0), 0.0, by_factor)
    return by_factor, div(mul(g, a), b) if isinstance(b, Node) else None


def _angle(g: Node, a: Node, b: Node) -> Sequence[Node]:
    """b g / (a^2 + b^2) and -a g / (a^2 + b^2), and zero where both are; as PyTorch multiplies, for what leaves the
    range of its type."""
    length = add(_squared(a), _squared(b))
    share = where(apply("eq", length, 0.0), 0.0, apply("reciprocal", length))
    return mul(mul(g, b), share), mul(mul(g, neg(a)), share)


def _between(x: Node, low: Operand, high: Operand) -> Node:
    return apply("logical_and", apply("gt", x, low), apply("lt", x, high))


def _elu(scale: float, alpha: float) -> Callable[[Node, Node, Node], Node]:
    def derivative(g: Node, y: Node, x: Node) -> Node:
        below = mul(g, mul(apply("exp", x), scale * alpha))
        return where(apply("le", x, 0.0), below, mul(g, scale) if scale != 1 else g)

    return derivative


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

_TERMS: dict[str, Terms] = {
    "add": lambda g, y, a, b: (g, g),
    "sub": lambda g, y, a, b: (g, neg(g)),
    "mul": lambda g, y, a, b: (mul(g, b), mul(g, a)),
    "div": _quotient,
    "neg": _one(lambda g, y, x: neg(g)),
    "copy": _one(lambda g, y, x: g),
    "abs": _one(lambda g, y, x: mul(g, apply("sign", x))),
    "reciprocal": _one(lambda g, y, x: mul(neg(g), _squared(y))),
    "square": _one(lambda g, y, x: mul(g, mul(2.0, x))),
    "sqrt": _one(lambda g, y, x: div(g, mul(2.0, y))),
    "rsqrt": _one(lambda g, y, x: mul(mul(-0.5, g), mul(mul(y, y), y))),
    "pow": _power,
    "maximum": _extremum(larger=True), "minimum": _extremum(larger=False),
    "fmax": _number(larger=True), "fmin": _number(larger=False),
    "hypot": lambda g, y, a, b: (mul(g, div(a, y)), mul(g, div(b, y))),
    "atan2": lambda g, y, a, b: _angle(g, a, b),
    "logaddexp": lambda g, y, a, b: (div(g, add(1.0, apply("exp", sub(b, a)))),
                                     div(g, add(1.0, apply("exp", sub(a, b))))),
    "logaddexp2": lambda g, y, a, b: (div(g, add(1.0, apply("exp", mul(sub(b, a), log(2.0))))),
                                      div(g, add(1.0, apply("exp", mul(sub(a, b), log(2.0)))))),
    "xlogy": lambda g, y, a, b: _by_logarithm(g, a, b),
    "exp": _one(lambda g, y, x: mul(g, y)),
    "expm1": _one(lambda g, y, x: mul(g, add(y, 1.0))),
    "log": _one(lambda g, y, x: div(g, x)),
    "log1p": _one(lambda g, y, x: div(g, add(x, 1.0))),
    "log2": _one(lambda g, y, x: div(g, mul(x, 0.6931471805599453))),
    "log10": _one(lambda g, y, x: div(g, mul(x, 2.3025850929940456))),
    "sin": _one(lambda g, y, x: mul(g, apply("cos", x))),
    "cos": _one(lambda g, y, x: mul(g, neg(apply("sin", x)))),
    "tan": _one(lambda g, y, x: mul(g, add(1.0, _squared(y)))),
    "asin": _one(lambda g, y, x: mul(g, apply("rsqrt", sub(1.0, _squared(x))))),
    "acos": _one(lambda g, y, x: mul(g, neg(apply("rsqrt", sub(1.0, _squared(x)))))),
    "atan": _one(lambda g, y, x: div(g, add(_squared(x), 1.0))),
    "sinh": _one(lambda g, y, x: mul(g, apply("cosh", x))),
    "cosh": _one(lambda g, y, x: mul(g, apply("sinh", x))),
    "asinh": _one(lambda g, y, x: mul(g, apply("rsqrt", add(_squared(x), 1.0)))),
    "acosh": _one(lambda g, y, x: mul(g, apply("rsqrt", sub(_squared(x), 1.0)))),
    "atanh": _one(lambda g, y, x: mul(g, div(1.0, sub(1.0, _squared(x))))),
    "erf": _one(lambda g, y, x: mul(mul(2.0 / sqrt(pi), apply("exp", neg(_squared(x)))), g)),
    "tanh": _one(lambda g, y, x: mul(g, sub(1.0, _squared(y)))),
    # What is NaN is not below a bound, and passes. The result is what the next layer has stored.
    "relu": _one(lambda g, y, x: where(apply("le", y, 0.0), 0.0, g)),
    "sigmoid": _one(lambda g, y, x: mul(mul(g, sub(1.0, y)), y)),
    "gelu_erf": _one(_gelu_erf), "gelu_tanh": _one(_gelu_tanh), "silu": _one(_silu), "mish": _one(_mish),
    "hardswish": _one(_hardswish),
    "hardsigmoid": _one(lambda g, y, x: where(_between(x, -3.0, 3.0), div(g, 6.0), 0.0)),
    "logsigmoid": _one(lambda g, y, x: mul(g, apply("sigmoid", neg(x)))),
    "selu": _one(_elu(_SELU_SCALE, _SELU_ALPHA)),
    "elu": lambda g, y, x, alpha: (_elu(1.0, alpha)(g, y, x),),
    "celu": lambda g, y, x, alpha: (where(apply("le", x, 0.0), mul(g, apply("exp", div(x, alpha))), g),),
    "leaky_relu": lambda g, y, x, slope: (where(apply("gt", x, 0.0), g, mul(g, slope)),),
    "prelu": lambda g, y, x, slope: (where(apply("gt", x, 0.0), g, mul(g, slope)),
                                     where(apply("gt", x, 0.0), 0.0, mul(g, x))),
    "softplus": lambda g, y, x, beta, bound: (
        where(apply("gt", mul(x, beta), bound), g, mul(g, apply("sigmoid", mul(x, beta)))),),
    "threshold": lambda g, y, x, bound, value: (where(apply("le", x, bound), 0.0, g),),
    "softshrink": lambda g, y, x, b: (where(_inside(x, b), 0.0, g),),
    "hardshrink": lambda g, y, x, b: (where(_inside(x, b), 0.0, g),),
    "clamp_min": lambda g, y, x, low: (where(apply("ge", x, low), g, 0.0),),
    "clamp_max": lambda g, y, x, high: (where(apply("le", x, high), g, 0.0),),
    "where": lambda g, y, condition, a, b: (None, where(condition, g, 0.0), where(condition, 0.0, g)),
    # By a number alone: PyTorch has the derivative of a divisor by other formulas.
    "fmod": lambda g, y, x, divisor: (g,) if not isinstance(divisor, Node) else _none(y),
    "remainder": lambda g, y, x, divisor: (g,) if not isinstance(divisor, Node) else _none(y),
    "nan_to_num": _one(lambda g, y, x: mul(g, cast(apply("isfinite", x), g.dtype))),
    **{name: _one(lambda g, y, x: zeros(g)) for name in STEPS},
}


def _inside(x: Node, bound: float) -> Node:
    return apply("logical_and", apply("ge", x, -bound), apply("le", x, bound))


def _operand(x: Node, wide: str) -> Operand:
    """An input as rules compute with it: a number, or a tensor of ``wide`` type where it is of 16 bits."""
    if x.op == "constant":
        return x["value"]
    return cast(x, wide) if x.dtype in NARROW else x


def _pointwise(node: Node, g: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    wide = "float32" if node.dtype in NARROW else node.dtype
    result = node if node.dtype == wide else cast(node, wide)
    terms = _TERMS[node.op](g if g.dtype == wide else cast(g, wide), result,
                            *(_operand(i, wide) for i in node.inputs))
    found: list[Node | None] = []
    for x, want, term in zip(node.inputs, wanted, (*terms, *(None,) * (len(node.inputs) - len(terms))), strict=True):
        if not want or term is None or x.dtype not in FLOATS:
            found.append(None)
            continue
        term = cast(term, node.dtype) if term.dtype in FLOATS else term  # where a backward formula rounds
        full = make("expand", term, shape=node.shape) if term.shape != node.shape else term
        found.append(cast(summed_to(full, x.shape), x.dtype))
    return found


ADJOINTS.update(dict.fromkeys(_TERMS, _pointwise))
