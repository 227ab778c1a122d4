"""Scalar functions as branch-free C++ that g++ vectorises.

Sources of the float approximations: the Cephes library of S. L. Moshier (expf, logf, log2f,
tanhf); N. Juffa's error function with faithful rounding (published coefficients); the argument
reduction of W. Cody and W. Waite in double precision for sine and cosine, with the minimax
polynomials of FreeBSD's k_sinf.c and k_cosf.c. Conditional expressions are written so that both
sides are computed, which is what lets the compiler turn them into selections.
"""

from __future__ import annotations

FUNCTION_SNIPPETS: dict[str, str] = {}


def _simple(name: str, body: str, arguments: str = "x") -> None:
    """A function whose text is the same for both types."""
    names = arguments.split()
    for_type = [
        f"static inline {real} {name}({', '.join(f'{real} {n}' for n in names)}) "
        f"{{ using real = {real}; {body} }}"
        for real in ("float", "double")
    ]
    FUNCTION_SNIPPETS[name] = "\n".join(for_type) + "\n"


def _pair(name: str, single: str, double: str) -> None:
    """A function with its own text for each type. double: a body, too, or what it returns."""
    body = f"\n{double.strip(chr(10))}\n" if "\n" in double else f" return {double}; "
    FUNCTION_SNIPPETS[name] = (
        f"static inline float {name}(float x) {{\n{single.strip(chr(10))}\n}}\n"
        f"static inline double {name}(double x) {{{body}}}\n"
    )


FUNCTION_SNIPPETS["kw_unfused_add"] = """\
// A sum and a difference that no product before them is fused into, as g++ does across statements where the processor
// has fused operations: here these are used up. The last one is the negative of either, of which g++ would make one
// operation with it that gives +0 where -0 is right.
#ifdef __FP_FAST_FMAF
template <typename real> static inline real kw_unfused_add(real x, real y) { return std::fma(x, real(1), y); }
template <typename real> static inline real kw_unfused_sub(real x, real y) { return std::fma(y, real(-1), x); }
template <typename real> static inline real kw_unfused_neg(real x) { return std::fma(x, real(-1), real(-0.0)); }
#else
template <typename real> static inline real kw_unfused_add(real x, real y) { return x + y; }
template <typename real> static inline real kw_unfused_sub(real x, real y) { return x - y; }
template <typename real> static inline real kw_unfused_neg(real x) { return -x; }
#endif
"""
FUNCTION_SNIPPETS["kw_divisor"] = """\
// One divisor of many numbers. A division takes a vector unit five times as long as the products with its reciprocal
// and with what that has lost: their sum, rounded once, is the quotient, but for one in millions: its neighbour.
// Where a number is so small that the second product is subnormal, or not finite, the first one stands alone. A divisor
// is usual where no such product leaves the range; others divide.
template <typename real> struct kw_divisor {
  real divisor, reciprocal, lost;
  explicit kw_divisor(real d) : divisor(d), reciprocal(1 / d), lost(std::fma(-reciprocal, d, real(1)) / d) {}
  bool usual() const {
#ifdef __FP_FAST_FMAF
    return std::abs(divisor) > real(0x1p-24) && std::abs(divisor) < real(0x1p24);
#else
    return false;
#endif
  }
};
template <typename real> static inline real kw_quotient(real x, const kw_divisor<real>& by, std::true_type) {
  const real size = std::abs(x), near = x * by.reciprocal;
  const bool mended = (size > real(0x1p-75)) & (size < real(0x1p100));
  return kw_select(mended, std::fma(x, by.reciprocal, kw_select(mended, x, real(0)) * by.lost), near);
}
template <typename real> static inline real kw_quotient(real x, const kw_divisor<real>& by, std::false_type) {
  return x / by.divisor;
}
"""
_simple("kw_multiply_add", "return std::fma(x, y, z);", "x y z")
_simple("kw_abs", "return std::abs(x);")
_simple("kw_sqrt", "return std::sqrt(x);")
_simple("kw_sign", "return real(x > 0) - real(x < 0);")
_simple("kw_floor", "return std::floor(x);")
_simple("kw_ceil", "return std::ceil(x);")
_simple("kw_trunc", "return std::trunc(x);")
_simple("kw_round", "return std::nearbyint(x);")
# NaN in either argument gives NaN.
_simple("kw_maximum", "return kw_select((x > y) | (x != x), x, y);", "x y")
_simple("kw_minimum", "return kw_select((x < y) | (x != x), x, y);", "x y")

_pair(
    "kw_exp",
    """
  // exp(x) = 2^n exp(r), |r| <= log(2) / 2; polynomial of Cephes expf. 2^n is applied in two
  // factors, which reaches the subnormal numbers and overflows to infinity: what n is shifted by, 1.5 * 2^23 + 2 * 127,
  // leaves the exponent of each in the last bits of a half. Below them the result is zero without a
  // product: one that underflows takes a processor a hundred times as long, and masks of scores ask for it.
  const bool vanishes = x < -104.0f;
  x = kw_select(vanishes, 0.0f, x);
  x = kw_select(x > 89.0f, 89.0f, x);
  const float shifted = x * 1.44269504088896341f + 12583166.0f;
  const float n = shifted - 12583166.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t whole = kw_bits(shifted), half = whole >> 1;
  const float power = p * kw_float(half << 23) * kw_float((whole - half) << 23);
  return kw_select(vanishes, 0.0f, power);
""",
    """
  // The same with the series of exp(r), whose next term is below 2^-57, and 1.5 * 2^52 + 2 * 1023.
  const bool vanishes = x < -746.0;
  x = kw_select(vanishes, 0.0, x);
  x = kw_select(x > 710.0, 710.0, x);
  const double shifted = x * 1.4426950408889634074 + 6755399441057790.0;
  const double n = shifted - 6755399441057790.0;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * (r * r) + r + 1.0;
  const int64_t whole = kw_bits(shifted), half = whole >> 1;
  const double power = p * kw_float(half << 52) * kw_float((whole - half) << 52);
  return kw_select(vanishes, 0.0, power);
""",
)
_pair(
    "kw_expm1",
    """
  // 2^n (exp(r) - 1) + (2^n - 1), with the reduction and polynomial of kw_exp. The factor 2 kept
  // apart makes the overflow exact.
  float c = kw_select(x < -80.0f, -80.0f, x);
  c = kw_select(c > 89.0f, 89.0f, c);
  const float shifted = c * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  const float scale = kw_float((kw_bits(shifted) - 0x4b400000 + 126) << 23);
  const float result = 2.0f * (scale * p + (scale - 0.5f));
  return kw_select(std::abs(x) < 1e-8f, x, result);
""",
    "std::expm1(x)",
)

_LOG_REDUCTION = """
  // x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); polynomial of Cephes logf. Subnormal numbers
  // are scaled by 2^23 first.
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = kw_select(tiny, x * 8388608.0f, x);
  const int32_t offset = kw_bits(scaled) - 0x3f3504f3;
  const int32_t exponent = offset >> 23;
  const float e = float(exponent) - kw_select(tiny, 23.0f, 0.0f);
  const float f = kw_float(kw_bits(scaled) - (exponent << 23)) - 1.0f;
  const float square = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * square;
"""
_LOG_SPECIAL = """
  result = kw_select(x == 0.0f, -INFINITY, result);
  result = kw_select(x < 0.0f, NAN, result);
  return kw_select((x == INFINITY) | (x != x), x, result);
"""
_pair(
    "kw_log",
    _LOG_REDUCTION
    + """
  float result = (f + ((p + e * -2.12194440e-4f) - 0.5f * square)) + e * 0.693359375f;
""".strip("\n")
    + _LOG_SPECIAL,
    "std::log(x)",
)
_pair(
    "kw_log2",
    _LOG_REDUCTION
    + """
  // 1 / log(2) - 1 keeps the leading term exact, as in Cephes log2f.
  const float low = p - 0.5f * square;
  float result = (((low * 0.44269504088896340736f + f * 0.44269504088896340736f) + low) + f) + e;
""".strip("\n")
    + _LOG_SPECIAL,
    "std::log2(x)",
)
_pair(
    "kw_log10",
    _LOG_REDUCTION
    + """
  // log10(2) and 1 / log(10), each in two parts of which the products with the larger are exact, as in Cephes log10f:
  // a power of ten has a whole logarithm.
  const float low = p - 0.5f * square;
  float result = e * 2.48745663981195213739e-4f + (f + low) * 7.00731903251827651129e-4f;
  result = ((result + low * 4.3359375e-1f) + f * 4.3359375e-1f) + e * 3.0078125e-1f;
""".strip("\n")
    + _LOG_SPECIAL,
    "std::log10(x)",
)
_pair(
    "kw_log1p",
    """
  // W. Kahan's correction: log(u) x / (u - 1) with u the rounded 1 + x.
  const float u = 1.0f + x;
  const float result = kw_log(u) * (x / (u - 1.0f));
  return kw_select(u == 1.0f, x, kw_select(u == INFINITY, u, result));
""",
    "std::log1p(x)",
)

_simple(
    "kw_logaddexp",
    "const real high = kw_maximum(x, y), low = kw_minimum(x, y); "
    "return kw_select((low == high) & (kw_abs(low) > std::numeric_limits<real>::max()), low, "
    "high + kw_log1p(kw_exp(low - high)));",
    "x y",
)
# The power of two of a difference, which is as exact: its product with log(2) has what that rounded away put back.
_simple(
    "kw_logaddexp2",
    "const real high = kw_maximum(x, y), low = kw_minimum(x, y), apart = kw_select(low == high, real(0), low - high), "
    "product = apart * real(0.69314718055994530942), power = kw_exp(product), "
    "rest = std::fma(apart, real(0.69314718055994530942), -product) "
    "+ apart * real(0.69314718055994530942 - double(real(0.69314718055994530942)) + 2.3190468138462996e-17); "
    "return high + kw_log1p(kw_select(power > real(0), power + power * rest, power)) * real(1.44269504088896340736);",
    "x y",
)

FUNCTION_SNIPPETS["kw_quadrant"] = """\
// sin(x) for turn = 0, cos(x) for turn = 1, of |x| <= 1e15: x less a multiple of pi/2 in three parts and
// double precision, then the polynomials of FreeBSD k_sinf.c and k_cosf.c.
static inline float kw_quadrant(float x, int64_t turn) {
  const double shifted = double(x) * 0.63661977236758134308 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  double r = std::fma(-n, 1.5707963267948966, double(x));
  r = std::fma(-n, 6.123233995736766e-17, r);
  r = std::fma(-n, -1.4973849048591833e-33, r);
  const int64_t quadrant = kw_bits(shifted) + turn;
  const double z = r * r;
  const double sine = r + r * z * (-0.166666666416265235595 + z * (0.0083333293858894631756
      + z * (-0.000198393348360966317347 + z * 0.0000027183114939898219064)));
  const double cosine = 1.0 + z * (-0.499999997251031003120 + z * (0.0416666233237390631894
      + z * (-0.00138867637746099294692 + z * 0.0000243904487962774090654)));
  const double value = (quadrant & 1) ? cosine : sine;
  return float((quadrant & 2) ? -value : value);
}
"""
FUNCTION_SNIPPETS["kw_quadrant_near"] = """\
// The same of |x| <= 128 in single precision. The first part of pi/2 leaves an exact rest, and so does the second, of
// 16 bits, where little is left; what rounding takes elsewhere, and the third part, is added to the polynomials, as is
// what rounding takes from 1 - z / 2.
static inline float kw_quadrant_near(float x, int32_t turn) {
  const float shifted = std::fma(x, 0.63661977236758134308f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const float rest = std::fma(-n, 1.5707963705062866f, x);
  const float r = std::fma(-n, -4.3711224861908704e-08f, rest);
  const float low = std::fma(-n, -4.3711224861908704e-08f, rest - r) + n * 1.6513995574653217e-13f;
  const int32_t quadrant = kw_bits(shifted) + turn;
  const float z = r * r, half = 0.5f * z, top = 1.0f - half;
  const float sine = r + (r * z * (-0.166666666416265235595f + z * (0.0083333293858894631756f
      + z * (-0.000198393348360966317347f + z * 0.0000027183114939898219064f))) + low);
  const float cosine = top + (((1.0f - top) - half) + (z * z * (4.166664568298827e-2f
      + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f)) - r * low));
  return kw_float(kw_bits(kw_select(quadrant & 1, cosine, sine)) ^ ((quadrant & 2) << 30));
}
"""
FUNCTION_SNIPPETS["kw_far"] = """\
// Whether an angle needs more digits of pi than kw_quadrant has. A loop that has found no such angle says so to
// kw_sin and kw_cos by std::false_type, one that has found none beyond kw_quadrant_near by kw_near; it is vectorised.
static inline bool kw_far(float x) { return std::abs(x) > 1e15f; }
static inline bool kw_far(double) { return false; }
struct kw_near {};
static inline int32_t kw_reach(float x) {
  return int32_t(std::abs(x) > 128.0f) | int32_t(std::abs(x) > 1e15f) << 1;
}
"""
for _name, _turn, _near in (("sin", 0, "x == 0.0f ? x : "), ("cos", 1, "")):
    FUNCTION_SNIPPETS[f"kw_{_name}"] = f"""\
static inline float kw_{_name}(float x, kw_near) {{ return {_near}kw_quadrant_near(x, {_turn}); }}
static inline float kw_{_name}(float x, std::false_type) {{ return {_near}kw_quadrant(x, {_turn}); }}
static inline float kw_{_name}(float x, std::true_type = {{}}) {{
  return kw_far(x) || x != x ? float(std::{_name}(double(x))) : kw_{_name}(x, std::false_type{{}});
}}
template <typename Far = std::true_type>
static inline double kw_{_name}(double x, Far = {{}}) {{ return std::{_name}(x); }}
"""

FUNCTION_SNIPPETS["kw_erf_parts"] = """\
// N. Juffa's error function: erf(t) for t <= 475/512 and 1 - erf(t) for t above, t >= 0.
static inline void kw_erf_parts(float t, float& inner, float& complement) {
  const float s = t * t;
  float r = -1.72853470e-5f * t + 3.83197126e-4f;
  const float u = -3.88396438e-3f * t + 2.42546219e-2f;
  r = r * s + u;
  r = r * t - 1.06777877e-1f;
  r = r * t - 6.34846687e-1f;
  r = r * t - 1.28717512e-1f;
  r = r * t - t;
  complement = kw_exp(r);
  float q = -5.96761703e-4f;
  q = q * s + 4.99119423e-3f;
  q = q * s - 2.67681349e-2f;
  q = q * s + 1.12819925e-1f;
  q = q * s - 3.76125336e-1f;
  q = q * s + 1.28379166e-1f;
  inner = q * t + t;
}
"""
_pair(
    "kw_erf",
    """
  const float t = std::abs(x);
  float inner, complement;
  kw_erf_parts(t, inner, complement);
  return std::copysign(kw_select(t > 0.927734375f, 1.0f - complement, inner), x);
""",
    "std::erf(x)",
)
# M. M. Shepherd and J. G. Laframboise, Chebyshev approximation of (1 + 2x) exp(x^2) erfc x, Math. Comp. 36 (1981), 249.
# The coefficients are those of the interpolation at Chebyshev's points, to 2^-57. A float32's goes through double: of
# its own polynomial, whose terms cancel near zero, the last digits would be wrong.
FUNCTION_SNIPPETS["kw_erfcx"] = """\
static inline double kw_erfcx(double x) {
  // exp(t^2) erfc(t) times 1 + 2 t for t = |x|, a polynomial of (t - 3.75) / (t + 3.75).
  const double t = std::abs(x);
  const double q = 1.0 - 7.5 / (t + 3.75);
  double p = 4.434959070009628e-10;
""" + "".join(f"  p = p * q + {value!r};\n" for value in (
    3.110310719839165e-10, -5.28428697963142e-09, -3.743568033634583e-09, 3.8965452548985966e-08,
    2.3261913276696566e-08, -2.591069687796658e-07, -5.721597255990987e-08, 1.752057970166318e-06,
    -9.735619015182663e-07, -1.1444412439171722e-05, 2.2384240314224437e-05, 5.1649211390702855e-05,
    -0.0002901540809795271, 0.0002937136342850081, 0.0017556258530017257, -0.009746579552504244,
    0.028362277418940665, -0.058693398590212366, 0.09230432116037876, -0.10880393014171785,
    0.08227673849014516, 0.003585415485463775, -0.14024059858554697, 1.2375126308378275)) + """\
  const double above = p * 0.5 / (t + 0.5);
  // 2 exp(x^2) - exp(x^2) erfc(-x) below zero, where x^2 needs the digits that its rounding loses.
  const double square = x * x;
  const double power = kw_exp(square);
  const double more = kw_select(square < 709.7, power * std::fma(x, x, -square), 0.0);
  return kw_select(x < 0.0, 2.0 * (more + power) - above, above);
}
static inline float kw_erfcx(float x) { return float(kw_erfcx(double(x))); }
"""
_pair(
    "kw_tanh",
    """
  // Cephes tanhf: a polynomial below 0.625, 1 - 2 / (exp(2 |x|) + 1) above.
  const float t = std::abs(x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float inner = p * z * t + t;
  const float result = 1.0f - 2.0f / (kw_exp(2.0f * t) + 1.0f);
  return std::copysign(kw_select(t < 0.625f, inner, result), x);
""",
    "std::tanh(x)",
)
_simple(
    "kw_sigmoid", "const real e = kw_exp(-kw_abs(x)); return kw_select(x < 0, e, real(1)) / (real(1) + e);"
)
_pair(
    "kw_gelu_erf",
    """
  // x times the normal distribution function; its lower tail comes from the complement, so small
  // values are not the difference of large ones.
  const float t = std::abs(x) * 0.70710678118654752f;
  float inner, complement;
  kw_erf_parts(t, inner, complement);
  const float tail = 0.5f * kw_select(t > 0.927734375f, complement, 1.0f - inner);
  return x * kw_select(x > 0.0f, 1.0f - tail, tail);
""",
    """
  // By the scaled complementary error function, whose argument's rounding matters little; x^2 has all of its digits.
  const double square = x * x, left = kw_select(square < 1e300, std::fma(x, x, -square), 0.0);
  const double power = kw_exp(-0.5 * square);
  const double tail = 0.5 * kw_erfcx(std::abs(x) * 0.70710678118654752440) * (power - power * (0.5 * left));
  return x * kw_select(x > 0.0, 1.0 - tail, tail);
""",
)
# 1 + tanh(u) = 2 / (1 + exp(-2 u)).
_simple(
    "kw_gelu_tanh", "return x * kw_sigmoid(real(1.5957691216057307117) * (x + real(0.044715) * (x * x * x)));"
)
# tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2).
_simple(
    "kw_mish",
    "const real e = kw_exp(kw_select(x > real(20), real(20), x)), n = e * (e + 2); return x * (n / (n + 2));",
)
_simple(
    "kw_hardsigmoid",
    "const real y = x + 3, z = kw_select(y < 0, real(0), y); return kw_select(z > 6, real(6), z) / 6;",
)
_simple(
    "kw_hardswish",
    "const real y = x + 3, z = kw_select(y < 0, real(0), y); return x * (kw_select(z > 6, real(6), z) / 6);",
)
_simple("kw_logsigmoid", "return kw_select(x > 0, real(0), x) - kw_log1p(kw_exp(-kw_abs(x)));")
# Both sides are computed first: a conditional call would keep the loop scalar.
_simple(
    "kw_softplus",
    "const real z = x * beta, soft = kw_log1p(kw_exp(z)) / beta; return kw_select(z > threshold, x, soft);",
    "x beta threshold",
)
_simple("kw_elu", "const real low = alpha * kw_expm1(x); return kw_select(x > 0, x, low);", "x alpha")
_simple(
    "kw_celu", "const real low = alpha * kw_expm1(x / alpha); return kw_select(x > 0, x, low);", "x alpha"
)
_simple(
    "kw_selu",
    "const real low = real(1.7580993408473766) * kw_expm1(x); "
    "return kw_select(x > 0, real(1.0507009873554805) * x, low);",
)

FUNCTION_SNIPPETS["kw_pow"] = """\
// |x|^y = 2^(y log2|x|) in double precision; then zeros, infinities, signs and NaN as in C.
static inline float kw_pow(float x, float y) {
  const double a = std::abs(double(x));
  const int64_t biased = int64_t(uint64_t(kw_bits(a) - 0x3fe6a09e667f3bcd + 0x3ff0000000000000) >> 52);
  const double e = kw_float(biased | 0x4330000000000000) - (4503599627370496.0 + 1023.0);
  const double m = kw_float(kw_bits(a) - ((biased - 1023) << 52));
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  const double series = 1.0 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11
      + z * (1.0 / 13 + z * (1.0 / 15)))))));
  double p = double(y) * (e + 2.8853900817779268147 * s * series);
  p = p < -200.0 ? -200.0 : p;
  p = p > 200.0 ? 200.0 : p;
  const double shifted = p + 6755399441055744.0;
  const double g = (p - (shifted - 6755399441055744.0)) * 0.69314718055994530942;
  const double q = 1.0 + g * (1.0 + g * (1.0 / 2 + g * (1.0 / 6 + g * (1.0 / 24 + g * (1.0 / 120
      + g * (1.0 / 720 + g * (1.0 / 5040 + g * (1.0 / 40320 + g * (1.0 / 362880)))))))));
  float result = float(q * kw_float((kw_bits(shifted) - 0x4338000000000000 + 1023) << 52));
  const bool outermost = (a == 0.0) | (a == double(INFINITY));
  result = outermost ? (((a == 0.0) != (y > 0.0f)) ? INFINITY : 0.0f) : result;
  const float half = 0.5f * y;
  const bool odd = (half - std::floor(half)) == 0.5f;
  const bool whole = std::floor(y) == y;
  const bool negative = std::copysign(1.0f, x) < 0.0f;
  result = (negative & odd) ? -result : result;
  result = (negative & !whole & !outermost) ? NAN : result;
  result = ((x != x) | (y != y)) ? x + y : result;
  result = ((a == 1.0) & (std::abs(y) == INFINITY)) ? 1.0f : result;
  return ((x == 1.0f) | (y == 0.0f)) ? 1.0f : result;
}
static inline double kw_pow(double x, double y) { return std::pow(x, y); }
"""
FUNCTION_SNIPPETS["kw_power"] = """\
// x^n for a constant n > 1 by products: of a float's in double, where they are in range and exact to its digits; of a
// double's in pairs, a value and what its rounding left (fma). Zeros, infinities and NaN are as a product has them.
template <int n> static inline double kw_power_and_rest(double x, double& rest) {
  if constexpr (n == 1) {
    rest = 0.0;
    return x;
  } else {
    double left, right;
    const double a = kw_power_and_rest<n - n / 2>(x, left), b = kw_power_and_rest<n / 2>(x, right), value = a * b;
    rest = std::fma(a, b, -value) + (a * right + left * b);
    return value;
  }
}
template <int n> static inline double kw_multiplied(double x) {
  if constexpr (n == 1) return x; else return kw_multiplied<n - n / 2>(x) * kw_multiplied<n / 2>(x);
}
template <int n> static inline float kw_power(float x) { return float(kw_multiplied<n>(double(x))); }
template <int n> static inline double kw_power(double x) {
  double rest;
  const double value = kw_power_and_rest<n>(x, rest), size = std::abs(value);
  return kw_select((size > 0.0) & (size <= std::numeric_limits<double>::max()), value + rest, value);
}
"""
