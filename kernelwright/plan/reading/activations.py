"""Activations that models write out, such as ``x * tanh(softplus(x))``, as the one function that they are.

One function takes fewer operations than its parts, and loses no digits between them. Laws:

    x tanh(softplus(x)) = mish(x)
    x (1 + erf(x / sqrt(2))) / 2 = gelu(x)
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = gelu(x) in its tanh form
    y / (1 + exp(-x)) = y sigmoid(x)

Constants need only fit together: ``k x (1 + erf(c x))`` is ``k sqrt(2) / c * gelu(sqrt(2) c x)``
for any k and c. This is done to the expressions of kernels, not to the graph, so that a kernel is measured against
the operators that it replaces as the model has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, isfinite, pi, sqrt

from kernelwright.plan.expressions import Apply, Constant, Expression

#: Factors this near to one are one, by the kernel's arithmetic: what models write of a root is rounded there, or has
#: fewer digits.
_NEAR = {"float32": 2.0**-25, "float64": 2.0**-50}
#: The tanh form of GELU, Hendrycks and Gimpel (2016), section 2.
_CUBIC, _SLOPE = 0.044715, sqrt(2 / pi)
_RESULTS = ("mish", "gelu_erf", "gelu_tanh", "sigmoid")
_CURVES = ("erf", "tanh")
_DEEPEST = 8

Polynomial = dict[int, float]


def as_one_function(expression: Expression, compute: str) -> Expression:
    """A product or a quotient as one function of one value times what is left, where it is one; else as it is.

    compute: the type of the kernel's arithmetic.
    """
    match expression:
        case Apply("reciprocal", (divisor,)) | Apply("div", (Constant(1.0), divisor)):
            return _inverse(divisor) or expression
        case Apply("div", (dividend, divisor)) if (inverse := _inverse(divisor)) is not None:
            return Apply("mul", (dividend, inverse))
    near = _NEAR[compute]
    found, number = _factors(expression)
    if len(found) == 1 and isinstance(found[0], Apply) and found[0].function in _RESULTS and abs(number - 1) <= near:
        return found[0]  # the last of the constants was behind the function
    if not any(map(_may_be_gate, found)):
        return expression
    for x in _products(expression):
        found, number = _factors(expression, whole=x)
        if len(found) != 2 or x not in found:
            continue
        if (result := _gated(x, found[1] if found[0] == x else found[0], near)) is not None:
            function, inner, outer = result
            return _scaled(Apply(function, (_scaled(x, inner, near),)), number * outer, near)
    return expression


def _inverse(divisor: Expression) -> Expression | None:
    """1 / (1 + exp(x)) as the sigmoid of -x; None of other divisors."""
    match divisor:
        case Apply("add", (Constant(1.0), Apply("exp", (x,)))) | Apply("add", (Apply("exp", (x,)), Constant(1.0))):
            negative = x.arguments[0] if isinstance(x, Apply) and x.function == "neg" else Apply("neg", (x,))
            return Apply("sigmoid", (negative,))
    return None


def polynomial(expression: Expression, x: Expression, depth: int = _DEEPEST) -> Polynomial | None:
    """Coefficients by powers of x, up to the third, of what is a polynomial of x as it is written; None of all else."""
    if expression == x:
        return {1: 1.0}
    if (number := _number(expression)) is not None:
        return {0: number}
    if not depth or not isinstance(expression, Apply):
        return None
    first, last = (polynomial(part, x, depth - 1) for part in (expression.arguments[0], expression.arguments[-1]))
    if first is None or last is None:
        return None
    match expression.function:
        case "neg":
            return _times(first, {0: -1.0})
        case "mul":
            return _times(first, last)
        case "square":
            return _times(first, first)
        case "pow" if last == {0: 2.0}:
            return _times(first, first)
        case "pow" if last == {0: 3.0}:
            return _times(_times(first, first), first)
        case "div" if set(last) == {0}:
            return _times(first, {0: 1 / last[0]})
        case "add" | "sub" | "unfused_add" | "unfused_sub" as function:
            sign = -1.0 if function.endswith("sub") else 1.0
            return {power: first.get(power, 0.0) + sign * last.get(power, 0.0) for power in {*first, *last}}
    return None


def _times(one: Polynomial | None, two: Polynomial | None) -> Polynomial | None:
    if one is None or two is None or max(one) + max(two) > 3:
        return None
    result: Polynomial = {}
    for power, value in one.items():
        for other, factor in two.items():
            result[power + other] = result.get(power + other, 0.0) + value * factor
    return result


def _number(expression: Expression) -> float | None:
    """The value of a constant of the kernel's arithmetic other than zero, infinity and NaN."""
    value = expression.value if type(expression) is Constant else 0.0
    return value if value and isfinite(value) else None


def _parts(expression: Expression) -> tuple[tuple[Expression, ...], float] | None:
    """A product, a quotient by a constant or a negation as factors and a number; None of anything else."""
    match expression:
        case Apply("neg", (value,)):
            return (value,), -1.0
        case Apply("mul", (left, right)):
            for number, value in ((_number(left), right), (_number(right), left)):
                if number is not None:
                    return (value,), number
            return (left, right), 1.0
        case Apply("div", (value, divisor)) if (number := _number(divisor)) is not None:
            return (value,), 1 / number
    return None


def _factors(expression: Expression, whole: Expression | None = None, depth: int = _DEEPEST
             ) -> tuple[list[Expression], float]:
    """The factors of a product and the number that they are times; ``whole`` is not taken apart."""
    parts = _parts(expression) if depth and (whole is None or expression != whole) else None
    if parts is None:
        return [expression], 1.0
    found, number = [], parts[1]
    for part in parts[0]:
        inner, times = _factors(part, whole, depth - 1)
        found += inner
        number *= times
    return found, number


def _products(expression: Expression, depth: int = _DEEPEST) -> Iterator[Expression]:
    """What a product is made of: factors, and products of some of them; the largest first."""
    parts = _parts(expression) if depth else None
    for part in parts[0] if parts else ():
        yield part
        yield from _products(part, depth - 1)


def _may_be_gate(expression: Expression) -> bool:
    """Whether this has the form of what x is times, whatever it is a function of."""
    match expression:
        case Apply("tanh", (Apply("softplus"),)):
            return True
        case Apply("add", parts):
            return any(isinstance(part, Apply) and part.function in _CURVES for part in parts)
    return False


def _gated(x: Expression, gate: Expression, near: float) -> tuple[str, float, float] | None:
    """(f, t, k) where x times its gate is k f(t x)."""
    match gate:
        case Apply("tanh", (Apply("softplus", (argument, beta, threshold)),)):
            own = polynomial(argument, x)
            # From 20 on its tanh is 1 in float64, too.
            if beta == Constant(1.0) and (_number(threshold) or 0.0) >= 20.0 and own and set(own) == {1}:
                return "mish", own[1], 1 / own[1]
        case Apply("add", (Constant(1.0), Apply(function, (argument,)))) | \
                Apply("add", (Apply(function, (argument,)), Constant(1.0))) if function in _CURVES:
            own = polynomial(argument, x)
            if own is None or not own.get(1):
                return None
            if function == "erf" and set(own) == {1}:
                scale = own[1] * sqrt(2)
                return "gelu_erf", scale, 2 / scale
            scale = own[1] / _SLOPE
            odd = not own.get(0) and not own.get(2)
            if function == "tanh" and odd and isclose(own.get(3, 0.0), _SLOPE * _CUBIC * scale**3, rel_tol=64 * near):
                return "gelu_tanh", scale, 2 / scale
    return None


def _scaled(x: Expression, number: float, near: float) -> Expression:
    return x if abs(number - 1) <= near else Apply("mul", (x, Constant(number)))
