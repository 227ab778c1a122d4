"""Angles, hyperbolic functions and remainders as C++ that g++ vectorises, but for remainders of quotients beyond 2^50.

Sources of the float approximations: the Cephes library of S. L. Moshier (asinf, atanf), whose polynomials are evaluated
in double, so that a result is off by little more than its last rounding. The ``double`` forms use the C library.
"""

from __future__ import annotations

ELEMENTARY_SNIPPETS: dict[str, str] = {}


def _pair(name: str, single: str, double: str, arguments: str = "x") -> None:
    """A function with its own text for each type."""
    names = arguments.split()
    for_float, for_double = (", ".join(f"{real} {n}" for n in names) for real in ("float", "double"))
    ELEMENTARY_SNIPPETS[name] = (
        f"static inline float {name}({for_float}) {{\n{single.strip(chr(10))}\n}}\n"
        f"static inline double {name}({for_double}) {{ {double} }}\n"
    )


ELEMENTARY_SNIPPETS["kw_copysign"] = """\
static inline float kw_copysign(float x, float y) { return std::copysign(x, y); }
static inline double kw_copysign(double x, double y) { return std::copysign(x, y); }
"""
ELEMENTARY_SNIPPETS["kw_tan"] = """\
static inline float kw_tan(float x, kw_near) {
  return x == 0.0f ? x : kw_quadrant_near(x, 0) / kw_quadrant_near(x, 1);
}
static inline float kw_tan(float x, std::false_type) { return x == 0.0f ? x : kw_quadrant(x, 0) / kw_quadrant(x, 1); }
static inline float kw_tan(float x, std::true_type = {}) {
  return kw_far(x) || x != x ? float(std::tan(double(x))) : kw_tan(x, std::false_type{});
}
template <typename Far = std::true_type>
static inline double kw_tan(double x, Far = {}) { return std::tan(x); }
"""
ELEMENTARY_SNIPPETS["kw_arc"] = """\
// The arc tangent of t >= 0, and the arc sine of s with z = s^2 for s <= 1/2, to the digits of a float.
static inline double kw_arc(double t) {
  const bool steep = t > 2.414213562373095, middle = t > 0.41421356237309503;
  const double above = -1.0 / t, near = (t - 1.0) / (t + 1.0);
  const double z = kw_select(steep, above, kw_select(middle, near, t)), w = z * z;
  const double base = kw_select(steep, 1.5707963267948966, kw_select(middle, 0.78539816339744831, 0.0));
  const double p = ((8.05374449538e-2 * w - 1.38776856032e-1) * w + 1.99777106478e-1) * w - 3.33329491539e-1;
  return base + (p * w * z + z);
}
static inline double kw_arc_sine(double s, double z) {
  const double p = (((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2) * z
      + 1.6666752422e-1;
  return p * z * s + s;
}
"""
_pair("kw_atan", "  return std::copysign(float(kw_arc(std::abs(double(x)))), x);", "return std::atan(x);")
_pair(
    "kw_atan2",
    """
  const double rise = std::abs(double(y)), run = std::abs(double(x)), slope = rise / run;
  const double t = kw_select(rise == 0.0, rise, kw_select((rise == run) & (rise == rise), 1.0, slope));
  const double angle = kw_arc(kw_select(x != x, double(x), t));
  return std::copysign(float(kw_select(std::copysign(1.0f, x) < 0.0f, 3.1415926535897932 - angle, angle)), y);
""",
    "return std::atan2(y, x);", "y x",
)
_ARC_SINE = """
  // Beyond 1/2 by that of the half of the angle's complement.
  const double t = std::abs(double(x)), half = 0.5 * (1.0 - t), root = std::sqrt(half);
  const bool large = t > 0.5;
  const double arc = kw_arc_sine(kw_select(large, root, t), kw_select(large, half, t * t));
"""
_pair(
    "kw_asin",
    _ARC_SINE + "  return std::copysign(float(kw_select(large, 1.5707963267948966 - 2.0 * arc, arc)), x);",
    "return std::asin(x);",
)
_pair(
    "kw_acos",
    _ARC_SINE
    + """
  const double far = kw_select(x < 0.0f, 3.1415926535897932 - 2.0 * arc, 2.0 * arc);
  return float(kw_select(large, far, 1.5707963267948966 - std::copysign(arc, double(x))));
""".strip("\n"),
    "return std::acos(x);",
)
_pair(
    "kw_sinh",
    """
  const float t = std::abs(x), less = kw_expm1(t), half = kw_exp(0.5f * t);
  const float near = 0.5f * (less + less / (less + 1.0f));
  return std::copysign(kw_select(t > 40.0f, (0.5f * half) * half, near), x);
""",
    "return std::sinh(x);",
)
_pair(
    "kw_cosh",
    """
  const float t = std::abs(x), power = kw_exp(t), half = kw_exp(0.5f * t);
  return kw_select(t > 40.0f, (0.5f * half) * half, 0.5f * power + 0.5f / power);
""",
    "return std::cosh(x);",
)
_pair(
    "kw_asinh",
    """
  const double t = std::abs(double(x));
  const float near = kw_log1p(float(t + t * t / (1.0 + std::sqrt(1.0 + t * t))));
  return std::copysign(kw_select(t > 1e6, kw_log(float(t)) + 0.69314718f, near), x);
""",
    "return std::asinh(x);",
)
_pair(
    "kw_acosh",
    """
  const double t = double(x) - 1.0;
  const float near = kw_log1p(float(t + std::sqrt(t * (t + 2.0)))), far = kw_log(x) + 0.69314718f;
  return kw_select(x < 1.0f, NAN, kw_select(x > 1e6f, far, near));
""",
    "return std::acosh(x);",
)
_pair(
    "kw_atanh",
    """
  const double t = std::abs(double(x));
  return std::copysign(0.5f * kw_log1p(float(2.0 * t / (1.0 - t))), x);
""",
    "return std::atanh(x);",
)
_pair(
    "kw_hypot",
    """
  const double a = x, b = y;
  return kw_select((std::abs(x) == INFINITY) | (std::abs(y) == INFINITY), INFINITY, float(std::sqrt(a * a + b * b)));
""",
    "return std::hypot(x, y);", "x y",
)
_pair(
    "kw_fmod",
    """
  // What is left of x less a multiple of y is exact in double where the multiple is; a quotient's rounding may make it
  // one too large.
  const double a = std::abs(double(x)), b = std::abs(double(y)), quotient = a / b;
  if (!(quotient < 1125899906842624.0 && b < double(INFINITY))) return std::fmod(x, y);
  const double rest = std::fma(-std::trunc(quotient), b, a);
  return std::copysign(float(rest < 0.0 ? rest + b : rest), x);
""",
    "return std::fmod(x, y);", "x y",
)
ELEMENTARY_SNIPPETS["kw_remainder"] = """\
// With the sign of the divisor, as PyTorch computes it.
template <typename real> static inline real kw_remainder(real x, real y) {
  const real rest = kw_fmod(x, y);
  return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}
"""
ELEMENTARY_SNIPPETS["kw_floor_divide"] = """\
// The floor of the quotient before its rounding, as PyTorch computes it.
template <typename real> static inline real kw_floor_divide(real x, real y) {
  const real rest = kw_fmod(x, y), quotient = x / y;
  const real whole = (x - rest) / y - real(rest != 0 && (y < 0) != (rest < 0)), low = std::floor(whole);
  const real near = whole != 0 ? low + real(whole - low > real(0.5)) : std::copysign(real(0), quotient);
  return y == 0 ? quotient : near;
}
"""
