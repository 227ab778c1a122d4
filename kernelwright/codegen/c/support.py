"""Snippets of C11 that generated kernels share: scalar functions for ``float`` and ``double``, and 16-bit floats.

Functions are those of the C library (``<tgmath.h>`` takes the one of its argument's type) and compositions of them that
keep the digits of small results. Products and sums are not fused: the flags say that the text is ISO C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HEADERS = ("#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
           "#include <tgmath.h>\n")
SNIPPETS: dict[str, str] = {}
"""Name to text. A snippet uses only snippets that precede it."""


def _both(name: str, value: str, arguments: str = "x") -> None:
    """A function of both types, whose ``value`` is an expression, or statements that end in a return."""
    taken = ", ".join(f"real {argument}" for argument in arguments.split())
    body = value if "return" in value else f"return {value};"
    text = re.sub(r"\bkw_(\w+)\(", r"kw_\1_real(", f"static inline real kw_{name}({taken}) {{ {body} }}\n")
    for real in ("float", "double"):
        SNIPPETS[f"kw_{name}_{real}"] = re.sub(r"real\b", real, re.sub(r"_real\(", f"_{real}(", text))


for _name, _value in (
        ("abs", "fabs(x)"), ("sqrt", "sqrt(x)"), ("sign", "(real)(x > 0) - (real)(x < 0)"), ("floor", "floor(x)"),
        ("ceil", "ceil(x)"), ("trunc", "trunc(x)"), ("round", "nearbyint(x)"), ("exp", "exp(x)"),
        ("expm1", "expm1(x)"), ("log", "log(x)"), ("log2", "log2(x)"), ("log10", "log10(x)"), ("log1p", "log1p(x)"),
        ("sin", "sin(x)"), ("cos", "cos(x)"), ("erf", "erf(x)"), ("tanh", "tanh(x)"),
        ("tan", "tan(x)"), ("asin", "asin(x)"), ("acos", "acos(x)"), ("atan", "atan(x)"), ("sinh", "sinh(x)"),
        ("cosh", "cosh(x)"), ("asinh", "asinh(x)"), ("acosh", "acosh(x)"), ("atanh", "atanh(x)")):
    _both(_name, _value)
for _name in ("atan2", "hypot", "copysign", "fmod"):
    _both(_name, f"{_name}(x, y)", "x y")
# With the sign of the divisor; and the floor of the quotient before its rounding: as PyTorch computes them.
_both("remainder", "const real rest = fmod(x, y); return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;", "x y")
_both("floor_divide", "const real rest = fmod(x, y), quotient = x / y; "
      "const real whole = (x - rest) / y - (real)(rest != 0 && (y < 0) != (rest < 0)), low = floor(whole); "
      "const real near = whole != 0 ? low + (real)(whole - low > (real)0.5) : copysign((real)0, quotient); "
      "return y == 0 ? quotient : near;", "x y")
_both("unfused_add", "x + y", "x y")
_both("unfused_sub", "x - y", "x y")
_both("multiply_add", "fma(x, y, z)", "x y z")
_both("pow", "pow(x, y)", "x y")
# NaN in either argument gives NaN.
_both("maximum", "x > y || x != x ? x : y", "x y")
_both("minimum", "x < y || x != x ? x : y", "x y")
_both("logaddexp", "const real high = kw_maximum(x, y), low = kw_minimum(x, y); "
      "return low == high && isinf(low) ? low : high + log1p(exp(low - high));", "x y")
_both("logaddexp2", "const real high = kw_maximum(x, y), low = kw_minimum(x, y); "
      "return low == high && isinf(low) ? low : "
      "high + log1p(exp2(low - high)) * (real)1.44269504088896340736;", "x y")
_both("sigmoid", "const real e = exp(-fabs(x)); return (x < 0 ? e : 1) / (1 + e);")
# The lower tail of the normal distribution is no difference of large numbers; its argument has the digits of double.
_both("gelu_erf", "(real)((double)x * 0.5 * erfc((double)x * -0.70710678118654752440))")
# 1 + tanh(u) = 2 / (1 + exp(-2 u)).
_both("gelu_tanh", "const double w = x; const double u = 1.5957691216057307117 * (w + 0.044715 * (w * w * w)); "
      "const double e = exp(-fabs(u)); return (real)(w * ((u < 0 ? e : 1) / (1 + e)));")
# tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2).
_both("mish", "const real e = exp(x > 20 ? 20 : x), n = e * (e + 2); return x * (n / (n + 2));")
_both("hardsigmoid", "const real y = x + 3, z = y < 0 ? 0 : y; return (z > 6 ? 6 : z) / 6;")
_both("hardswish", "const real y = x + 3, z = y < 0 ? 0 : y; return x * ((z > 6 ? 6 : z) / 6);")
_both("logsigmoid", "(x > 0 ? 0 : x) - log1p(exp(-fabs(x)))")
_both("selu", "x > 0 ? (real)1.0507009873554805 * x : (real)1.7580993408473766 * expm1(x)")

# From 26 on the asymptotic series, as erfc vanishes there; below zero 2 exp(x^2) - erfcx(-x). The square loses digits
# that its exponential would show, so that they are put back. In double for both types.
_SERIES = "1"
for _odd in (13, 11, 9, 7, 5, 3, 1):
    _SERIES = f"(1 - {_odd} * inverse * {_SERIES})"
_both("erfcx", "const double t = fabs((double)x), square = t * t, inverse = 0.5 / square; "
      f"const double far = {_SERIES} * 0.56418958354775628695 / t; "
      "const double power = exp(square) * (1 + fma(t, t, -square)), above = t < 26 ? power * erfc(t) : far; "
      "return (real)(!(x < 0) ? above : square > 709.7 ? (double)INFINITY : 2 * power - above);")

SNIPPETS["kw_spread"] = """\
// The biased variance of n elements from the sum and the sum of squares of their deviations from about their mean.
static inline double kw_spread(double sum, double squares, double n) {
  const double spread = (squares - sum * (sum / n)) / n;
  return spread < 0 ? 0.0 : spread;
}
"""
SNIPPETS["kw_float16_value"] = """\
static inline float kw_float16_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  const float size = exponent == 31 ? (digits ? NAN : INFINITY)
      : exponent ? ldexpf((float)(1024 + digits), exponent - 25) : ldexpf((float)digits, -24);
  return bits & 0x8000 ? -size : size;
}
"""
SNIPPETS["kw_float16_bits"] = """\
// The nearest float16 (halves to even), as bits.
static inline uint16_t kw_float16_bits(float x) {
  uint32_t word;
  memcpy(&word, &x, 4);
  const uint32_t sign = word >> 16 & 0x8000;
  const float size = fabsf(x);
  if (x != x) return (uint16_t)(sign | 0x7e00);
  if (size >= 65520.0f) return (uint16_t)(sign | 0x7c00);
  if (size < 6.103515625e-05f) return (uint16_t)(sign | (uint32_t)nearbyintf(size * 16777216.0f));
  const uint32_t held = (word & 0x7fffffff) - (112u << 23);
  return (uint16_t)(sign | (held + 0xfff + (held >> 13 & 1)) >> 13);
}
"""
SNIPPETS["kw_bfloat16_value"] = """\
static inline float kw_bfloat16_value(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &word, 4);
  return x;
}
"""
SNIPPETS["kw_bfloat16_bits"] = """\
// The nearest bfloat16 (halves to even), as bits.
static inline uint16_t kw_bfloat16_bits(float x) {
  uint32_t word;
  memcpy(&word, &x, 4);
  return x != x ? 0x7fc0 : (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
"""
_NAME = re.compile(r"\bkw_\w+")


def used_snippets(text: str) -> tuple[str, ...]:
    """The names of the snippets that ``text`` mentions, in the order of SNIPPETS."""
    mentioned = set(_NAME.findall(text))
    return tuple(name for name in SNIPPETS if name in mentioned)


def snippets(names: Iterable[str]) -> str:
    """The headers, then the snippets ``names`` and all they use, each once, in a valid order.

    Raises KeyError for an unknown name.
    """
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += used_snippets(SNIPPETS[name])
    return "\n".join([HEADERS, *(SNIPPETS[name] for name in SNIPPETS if name in needed)])
