"""The scalar functions that kernels compute: one row each.

A row holds the text for C-like targets, the torch reference on tensors (any floating dtype) and
the algebraic facts that rules use. ``{0}``, ``{1}``, ... are the arguments; every value is of type
``real`` (float or double), truth values are 0 and 1. The functions ``kw_exp`` and so on are
supplied by the target, in ``float`` and ``double``. NaN propagates as in PyTorch: a comparison
that decides between a bound and x is written so that NaN falls through to x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """One scalar function.

    monotone: +1 increasing, -1 decreasing, 0 neither or unknown, in its first argument.
    range: closed bounds of its value over finite arguments.
    cost: operations, in units of one multiply-add.
    """

    name: str
    arity: int
    text: str
    reference: Callable[..., torch.Tensor]
    monotone: int = 0
    range: tuple[float, float] = (-inf, inf)
    cost: int = 1


FUNCTIONS: dict[str, ScalarFunction] = {}
# These turn a rounding into a whole step: what they see must be rounded as PyTorch rounds it.
JUMPS = ("floor", "ceil", "round", "trunc", "sign", "threshold", "hardshrink", "eq", "ne", "lt", "le", "gt", "ge",
         "logical_and", "logical_or", "logical_not", "fmod", "remainder", "floor_divide", "heaviside", "nan_to_num",
         "isfinite", "isinf", "signbit")


def _row(name: str, arity: int, text: str, reference: Callable[..., torch.Tensor], *, monotone: int = 0,
         range: tuple[float, float] = (-inf, inf), cost: int = 1) -> None:
    FUNCTIONS[name] = ScalarFunction(name, arity, text, reference, monotone, range, cost)



def _multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x y + z rounded once, as processors have it. In float64 what the product and the sum round away is added at last
    (T. J. Dekker, A floating-point technique for extending the available precision, Numer. Math. 18 (1971), 224)."""
    plain = x * y + z
    if plain.dtype != torch.float64:
        return (torch.as_tensor(x).double() * y + z).to(plain.dtype)
    x, y, product = torch.as_tensor(x), torch.as_tensor(y), x * y
    high = [(t := v * 134217729.0) - (t - v) for v in (x, y)]
    low = [v - h for v, h in zip((x, y), high, strict=True)]
    rest = ((high[0] * high[1] - product) + high[0] * low[1] + low[0] * high[1]) + low[0] * low[1]
    part = plain - product
    lost = (product - (plain - part)) + (z - part) + rest
    return torch.where(torch.isfinite(lost), plain + lost, plain)


# Arithmetic.
_row("add", 2, "({0} + {1})", torch.add, monotone=1)
_row("sub", 2, "({0} - {1})", torch.sub, monotone=1)
_row("mul", 2, "({0} * {1})", torch.mul)
_row("div", 2, "({0} / {1})", torch.div, cost=4)
_row("multiply_add", 3, "kw_multiply_add({0}, {1}, {2})", _multiply_add)
_row("neg", 1, "(-{0})", torch.neg, monotone=-1)
_row("abs", 1, "kw_abs({0})", torch.abs, range=(0.0, inf))
_row("reciprocal", 1, "(real(1) / {0})", torch.reciprocal, cost=4)
_row("square", 1, "({0} * {0})", torch.square, range=(0.0, inf))
_row("sqrt", 1, "kw_sqrt({0})", torch.sqrt, monotone=1, range=(0.0, inf), cost=4)
_row("rsqrt", 1, "(real(1) / kw_sqrt({0}))", torch.rsqrt, monotone=-1, range=(0.0, inf), cost=8)
_row("pow", 2, "kw_pow({0}, {1})", torch.pow, cost=40)
_row("sign", 1, "kw_sign({0})", torch.sign, monotone=1, range=(-1.0, 1.0))
_row("floor", 1, "kw_floor({0})", torch.floor, monotone=1)
_row("ceil", 1, "kw_ceil({0})", torch.ceil, monotone=1)
_row("round", 1, "kw_round({0})", torch.round, monotone=1)
_row("trunc", 1, "kw_trunc({0})", torch.trunc, monotone=1)
_row("maximum", 2, "kw_maximum({0}, {1})", torch.maximum, monotone=1)
_row("minimum", 2, "kw_minimum({0}, {1})", torch.minimum, monotone=1)
# Of a number and NaN the number, of two zeros the first.
_row("fmax", 2, "(({1} != {1} || {0} >= {1}) ? {0} : {1})", torch.fmax, monotone=1)
_row("fmin", 2, "(({1} != {1} || {0} <= {1}) ? {0} : {1})", torch.fmin, monotone=1)
_row("fmod", 2, "kw_fmod({0}, {1})", torch.fmod, cost=20)
_row("remainder", 2, "kw_remainder({0}, {1})", torch.remainder, cost=22)
_row("floor_divide", 2, "kw_floor_divide({0}, {1})", torch.floor_divide, cost=28)
_row("copysign", 2, "kw_copysign({0}, {1})", torch.copysign)
_row("hypot", 2, "kw_hypot({0}, {1})", torch.hypot, range=(0.0, inf), cost=12)
_row("heaviside", 2, "({0} == real(0) ? {1} : real({0} > real(0)))", torch.heaviside, cost=2)
# The numbers are of the tensor's own type.
_row("nan_to_num", 4, "({0} != {0} ? {1} : ({0} == real(INFINITY) ? {2} : ({0} == -real(INFINITY) ? {3} : {0})))",
     lambda x, nan, high, low: torch.where(x != x, nan, torch.where(x == inf, high, torch.where(x == -inf, low, x))),
     cost=4)

# Exponentials and logarithms.
_row("exp", 1, "kw_exp({0})", torch.exp, monotone=1, range=(0.0, inf), cost=10)
_row("expm1", 1, "kw_expm1({0})", torch.expm1, monotone=1, range=(-1.0, inf), cost=16)
_row("log", 1, "kw_log({0})", torch.log, monotone=1, cost=12)
_row("log1p", 1, "kw_log1p({0})", torch.log1p, monotone=1, cost=16)
_row("log2", 1, "kw_log2({0})", torch.log2, monotone=1, cost=12)
_row("log10", 1, "kw_log10({0})", torch.log10, monotone=1, cost=14)
_row("logaddexp", 2, "kw_logaddexp({0}, {1})", torch.logaddexp, monotone=1, cost=30)
_row("logaddexp2", 2, "kw_logaddexp2({0}, {1})", torch.logaddexp2, monotone=1, cost=32)
_row("sin", 1, "kw_sin({0})", torch.sin, range=(-1.0, 1.0), cost=20)
_row("cos", 1, "kw_cos({0})", torch.cos, range=(-1.0, 1.0), cost=20)
_row("tan", 1, "kw_tan({0})", torch.tan, cost=26)
_row("asin", 1, "kw_asin({0})", torch.asin, monotone=1, range=(-1.571, 1.571), cost=20)
_row("acos", 1, "kw_acos({0})", torch.acos, monotone=-1, range=(0.0, 3.142), cost=20)
_row("atan", 1, "kw_atan({0})", torch.atan, monotone=1, range=(-1.571, 1.571), cost=20)
_row("atan2", 2, "kw_atan2({0}, {1})", torch.atan2, range=(-3.142, 3.142), cost=26)
_row("sinh", 1, "kw_sinh({0})", torch.sinh, monotone=1, cost=20)
_row("cosh", 1, "kw_cosh({0})", torch.cosh, range=(1.0, inf), cost=20)
_row("asinh", 1, "kw_asinh({0})", torch.asinh, monotone=1, cost=28)
_row("acosh", 1, "kw_acosh({0})", torch.acosh, monotone=1, range=(0.0, inf), cost=28)
_row("atanh", 1, "kw_atanh({0})", torch.atanh, monotone=1, cost=24)
_row("xlogy", 2, "(({0} == real(0) && {1} == {1}) ? real(0) : {0} * kw_log({1}))", torch.xlogy, cost=14)
_row("erf", 1, "kw_erf({0})", torch.erf, monotone=1, range=(-1.0, 1.0), cost=20)
_row("erfcx", 1, "kw_erfcx({0})", torch.special.erfcx, monotone=-1, range=(0.0, inf), cost=40)
_row("tanh", 1, "kw_tanh({0})", torch.tanh, monotone=1, range=(-1.0, 1.0), cost=14)

# Activations. Those with parameters take them as further arguments.
_row("relu", 1, "({0} < real(0) ? real(0) : {0})", torch.relu, monotone=1, range=(0.0, inf))
_row("sigmoid", 1, "kw_sigmoid({0})", torch.sigmoid, monotone=1, range=(0.0, 1.0), cost=14)
_row("gelu_erf", 1, "kw_gelu_erf({0})", F.gelu, range=(-0.17, inf), cost=24)
_row("gelu_tanh", 1, "kw_gelu_tanh({0})", lambda x: F.gelu(x, approximate="tanh"), range=(-0.171, inf), cost=22)
_row("silu", 1, "({0} * kw_sigmoid({0}))", F.silu, range=(-0.2785, inf), cost=16)
_row("mish", 1, "kw_mish({0})", F.mish, range=(-0.309, inf), cost=36)
_row("hardswish", 1, "kw_hardswish({0})", F.hardswish, range=(-0.376, inf), cost=4)
_row("hardsigmoid", 1, "kw_hardsigmoid({0})", F.hardsigmoid, monotone=1, range=(0.0, 1.0), cost=3)
_row("softsign", 1, "({0} / (real(1) + kw_abs({0})))", F.softsign, monotone=1, range=(-1.0, 1.0), cost=6)
_row("logsigmoid", 1, "kw_logsigmoid({0})", F.logsigmoid, monotone=1, range=(-inf, 0.0), cost=30)
_row("selu", 1, "kw_selu({0})", F.selu, monotone=1, range=(-1.7581, inf), cost=18)
_row("leaky_relu", 2, "({0} > real(0) ? {0} : {0} * {1})",
     lambda x, slope: torch.where(x > 0, x, x * slope), monotone=0)
_row("prelu", 2, "({0} > real(0) ? {0} : {0} * {1})", lambda x, slope: torch.where(x > 0, x, x * slope))
_row("elu", 2, "({0} > real(0) ? {0} : {1} * kw_expm1({0}))",
     lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x)), cost=18)
_row("celu", 2, "({0} > real(0) ? {0} : {1} * kw_expm1({0} / {1}))",
     lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x / alpha)), cost=22)
_row("softplus", 3, "({0} * {1} > {2} ? {0} : kw_log1p(kw_exp({0} * {1})) / {1})",
     lambda x, beta, threshold: torch.where(x * beta > threshold, x, torch.log1p(torch.exp(x * beta)) / beta),
     cost=30)
_row("threshold", 3, "({0} <= {1} ? {2} : {0})", lambda x, bound, value: torch.where(x <= bound, value, x))
# Zero but for NaN. PyTorch's zeros are so in its vectors; those of the last elements, which fill none, have x's sign.
_row("softshrink", 2, "({0} > {1} ? {0} - {1} : ({0} < -{1} ? {0} + {1} : ({0} == {0} ? real(0) : {0})))",
     lambda x, b: torch.where(x > b, x - b, torch.where(x < -b, x + b, torch.where(x == x, 0, x))), monotone=1, cost=3)
_row("hardshrink", 2, "(({0} >= -{1} && {0} <= {1}) ? real(0) : {0})",
     lambda x, b: torch.where((x >= -b) & (x <= b), torch.zeros_like(x), x), monotone=1, cost=2)
# PyTorch clamps by max(x, low) then min(., high): NaN stays, and high wins where low > high.
_row("clamp_min", 2, "({0} < {1} ? {1} : {0})", lambda x, low: torch.where(x < low, low, x), monotone=1)
_row("clamp_max", 2, "({0} > {1} ? {1} : {0})", lambda x, high: torch.where(x > high, high, x), monotone=1)

# Comparisons and logic.
_row("eq", 2, "real({0} == {1})", torch.eq, range=(0.0, 1.0))
_row("ne", 2, "real({0} != {1})", torch.ne, range=(0.0, 1.0))
_row("lt", 2, "real({0} < {1})", torch.lt, range=(0.0, 1.0))
_row("le", 2, "real({0} <= {1})", torch.le, range=(0.0, 1.0))
_row("gt", 2, "real({0} > {1})", torch.gt, range=(0.0, 1.0))
_row("ge", 2, "real({0} >= {1})", torch.ge, range=(0.0, 1.0))
_row("logical_and", 2, "real({0} != real(0) && {1} != real(0))", torch.logical_and, range=(0.0, 1.0))
_row("logical_or", 2, "real({0} != real(0) || {1} != real(0))", torch.logical_or, range=(0.0, 1.0))
_row("logical_not", 1, "real({0} == real(0))", torch.logical_not, range=(0.0, 1.0))
_row("isfinite", 1, "real(kw_abs({0}) < real(INFINITY))", torch.isfinite, range=(0.0, 1.0))
_row("isinf", 1, "real(kw_abs({0}) == real(INFINITY))", torch.isinf, range=(0.0, 1.0))
_row("signbit", 1, "real(kw_copysign(real(1), {0}) < real(0))", torch.signbit, range=(0.0, 1.0))
_row("where", 3, "({0} != real(0) ? {1} : {2})", lambda c, a, b: torch.where(c.bool(), a, b))

# Kernels use these where they keep what PyTorch rounds; they are no operators of the graph. A sum that compilers make
# one operation with a product before it (an FMA) is another number than the sum of the rounded product.
UNFUSED = {
    name: ScalarFunction(f"unfused_{name}", 2, f"kw_unfused_{name}({{0}}, {{1}})", reference)
    for name, reference in (("add", torch.add), ("sub", torch.sub))
}
# Functions whose last operation is a multiplication on some target.
PRODUCTS = ("mul", "square", "div", "silu", "gelu_erf", "gelu_tanh", "mish", "hardswish", "softsign", "xlogy")
ROUNDINGS = {
    name: ScalarFunction(f"round_{name}", 1, text, lambda x, name=name: x.to(getattr(torch, name)).to(x.dtype), cost=8)
    for name, text in (("float32", "real(float({0}))"), ("float16", "real(kw_float16_value(kw_float16_bits({0})))"),
                       ("bfloat16", "real(kw_bfloat16_value(kw_bfloat16_bits({0})))"))
}



def _divided(quotient: str) -> str:
    return f"({{1}} == 0 ? whole(0) : {{1}} == -1 ? whole(-uwhole({{0}})) : {quotient})"


def _rest(rest: str) -> str:
    return f"({{1}} == 0 || {{1}} == -1 ? whole(0) : {rest})"


# Integers in kernels: arguments and results are ``whole``, 64 bits wide, and wrap as in PyTorch (``uwhole`` is the
# unsigned type, whose overflow is defined). Comparisons give truth values, which are of type ``real``.
_WHOLE = (
    ("add", 2, "whole(uwhole({0}) + uwhole({1}))", torch.add),
    ("sub", 2, "whole(uwhole({0}) - uwhole({1}))", torch.sub),
    ("mul", 2, "whole(uwhole({0}) * uwhole({1}))", torch.mul),
    ("neg", 1, "whole(-uwhole({0}))", torch.neg),
    ("abs", 1, "({0} < 0 ? whole(-uwhole({0})) : {0})", torch.abs),
    ("sign", 1, "(whole({0} > 0) - whole({0} < 0))", torch.sign),
    ("square", 1, "whole(uwhole({0}) * uwhole({0}))", torch.square),
    ("relu", 1, "({0} < 0 ? whole(0) : {0})", torch.relu),
    ("maximum", 2, "({0} > {1} ? {0} : {1})", torch.maximum),
    ("minimum", 2, "({0} < {1} ? {0} : {1})", torch.minimum),
    ("clamp_min", 2, "({0} < {1} ? {1} : {0})", torch.maximum),
    ("clamp_max", 2, "({0} > {1} ? {1} : {0})", torch.minimum),
    ("where", 3, "({0} != real(0) ? {1} : {2})", lambda c, a, b: torch.where(c.bool(), a, b)),
    ("bitwise_and", 2, "({0} & {1})", torch.bitwise_and),
    ("bitwise_or", 2, "({0} | {1})", torch.bitwise_or),
    ("bitwise_xor", 2, "({0} ^ {1})", torch.bitwise_xor),
    ("bitwise_not", 1, "(~{0})", torch.bitwise_not),
    # Rounded down, and the remainder has the divisor's sign; and toward zero. By zero, where the original computation
    # raises an error, they are zero, as processors stop there; and where a quotient leaves the range.
    ("floor_divide", 2, _divided("{0} / {1} - whole(({0} % {1} != 0) & (({0} % {1} ^ {1}) < 0))"), torch.floor_divide),
    ("remainder", 2, _rest("{0} % {1} + (({0} % {1} != 0) & (({0} % {1} ^ {1}) < 0) ? {1} : whole(0))"),
     torch.remainder),
    ("trunc_divide", 2, _divided("{0} / {1}"), lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    ("fmod", 2, _rest("{0} % {1}"), torch.fmod),
    *((name, 2, f"real({{0}} {sign} {{1}})", getattr(torch, name))
      for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))),
)
WHOLE_FUNCTIONS = {name: ScalarFunction(f"whole_{name}", arity, text, reference)
                   for name, arity, text, reference in _WHOLE}
# Between the two, rounded to a type where it is named (what no integer type holds becomes what the processor makes of
# it, so the type itself is named, as in PyTorch, which goes to uint8 by way of int64); and to the range of a narrower
# integer type.
_CONVERSIONS = (
    ScalarFunction("to_whole", 1, "whole({0})", lambda x: x.to(torch.int64)),
    ScalarFunction("to_real", 1, "real({0})", lambda x: x.to(torch.float64)),
    *(ScalarFunction(f"to_{name}", 1, row.text.replace("{0}", "float({0})"),
                     lambda x, name=name: x.to(getattr(torch, name)).to(torch.float64))
      for name, row in ROUNDINGS.items()),
    *(ScalarFunction(f"to_{name}", 1, text, lambda x, name=name: x.to(getattr(torch, name)).long())
      for name, text in (("int64", "whole({0})"), ("int32", "whole(int32_t({0}))"), ("int16", "whole(int16_t({0}))"),
                         ("int8", "whole(int8_t({0}))"), ("uint8", "whole(uint8_t(whole({0})))"))),
    *(ScalarFunction(f"wrap_{name}", 1, f"whole({name}_t({{0}}))",
                     lambda x, name=name: x.to(getattr(torch, name)).long())
      for name in ("int32", "int16", "int8", "uint8")),
)
KERNEL_FUNCTIONS: dict[str, ScalarFunction] = {f.name: f for f in (
    *FUNCTIONS.values(), *UNFUSED.values(), *ROUNDINGS.values(), *WHOLE_FUNCTIONS.values(), *_CONVERSIONS)}
# Functions whose result is whole.
WHOLE_RESULTS = frozenset({f.name for f in (*WHOLE_FUNCTIONS.values(), *_CONVERSIONS)
                           if not f.text.startswith("real(")})
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
