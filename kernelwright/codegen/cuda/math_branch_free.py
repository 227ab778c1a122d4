"""Functions of the generated CUDA loops that take no branch and call nothing, as text.

The unrolled steps of a loop cannot run beside each other across a branch or a call, and in the epilogue of a
contraction few warps are there to hide what each step waits for. So these are straight lines in float: polynomials,
one or two of the device's approximations, and choices between values that are all computed. An approximation takes
its pipe as long as eight other instructions theirs, a choice or an extremum as long as two. Each polynomial is a
minimax fit, its coefficients rounded one after the other and the rest fitted again; its error is beside it.

By the PTX manual the approximations may be off by 2^-22 (powers of two) and 2^-23 of the result (reciprocals, of square
roots too). The errors below, in units of the last place, are over all floats: with exact approximations, and as far
off as they may be. Instructions are those of one of eight unrolled steps for sm_90a.

===========  ============  =====  ==========  ========================================================================
function     instructions  were   errors      remarks
===========  ============  =====  ==========  ========================================================================
gelu_erf     13            26     1.3, 5.1    for x > 0; PyTorch's formula has 1.5, below zero more than this
gelu_tanh    10            22     2.4, 4.3    for x > 0; below, the exponent's rounding, as before
erf          17            22     1.4, 2.9
sigmoid      17            17     2.3, 4.5    results below 2^-128 are zero
silu         18            18     2.7, 5.0    zero below -88.7, as in PyTorch
mish         19            24     4.4, 7.0
softplus     22            43     2.6, 6.6    had 2 branches
logsigmoid   21            39     2.6, 6.6    had 1 branch
logaddexp    24            54     1.3, 2.3    had 2 branches
elu          12            34     1.5, 3.2    had 1 branch; celu and selu likewise
softsign     5             28     2.0, 2.0    had a call and 3 branches
x / y        16            28     0.5, 0.5    had a call and 3 branches
sqrt         12            17     0.5, 0.5    had a call and 2 branches
rsqrt        4             37     0.5, 2.6    had 2 calls; CUDA's, as in PyTorch
===========  ============  =====  ==========  ========================================================================

CUDA's own are straight lines for exp (8), tanh (15), log (25), log2 (27) and expm1 (28). Its log1p (29, 1 branch), sin
and cos (88, 4 branches) and pow (91, 6 branches) stay because networks hardly apply them to every element.
"""

from __future__ import annotations

from collections.abc import Sequence

_HEAD = "static __device__ __forceinline__"


def _instruction(name: str, operands: str, ptx: str, elsewhere: str, least: int = 0, comment: str = "") -> str:
    """A function of floats that is one instruction from architecture ``least`` on, and what it computes elsewhere."""
    names = operands.split()
    signature = ", ".join(f"float {name}" for name in names)
    places = ", ".join(f"%{at}" for at in range(len(names) + 1))
    given = ", ".join(f'"f"({name})' for name in names)
    where = f"#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= {least}" if least else "#ifdef __CUDA_ARCH__"
    said = f"// {comment}\n" if comment else ""
    return (f"{said}{_HEAD} float {name}({signature}) {{\n{where}\n  float result;\n"
            f'  asm("{ptx}.f32 {places};" : "=f"(result) : {given});\n  return result;\n'
            f"#else\n  return {elsewhere};\n#endif\n}}\n")


def _polynomial(to: str, variable: str, *coefficients: float) -> str:
    """Statements by Horner's scheme; the coefficients from the constant on."""
    *rest, last = [f"{value}f" for value in coefficients]
    steps = [f"float {to} = fmaf({last}, {variable}, {rest.pop()});"]
    steps += [f"{to} = fmaf({to}, {variable}, {value});" for value in reversed(rest)]
    return "\n".join("  " + " ".join(steps[at:at + 3]) for at in range(0, len(steps), 3))


def device_text(name: str, parameters: Sequence[str], lines: str, double: str, comment: str = "") -> str:
    """``name`` for float, by its lines, and for double, by an expression, by statements or not at all."""
    bodies = {"float": lines, "double": double if ";" in double or not double else f"return {double};"}
    text = "".join(f"// {line}\n" for line in comment.splitlines())
    for real, body in bodies.items():
        given = ", ".join(f"{real} {parameter}" for parameter in parameters)
        body = f"{body}\n" if body.startswith("\n") else f" {body.strip()} "
        text += f"{_HEAD} {real} {name}({given}) {{{body}}}\n" if body.strip() else ""
    return text


_EXTREMUM = "NaN if either is. A device takes -0 for less than 0; elsewhere a is as good as b."
STRAIGHT: dict[str, str] = {
    # Instructions. To those that approximate, numbers below 2^-126 are zeros, and among their results.
    "kw_quick_exp2": _instruction("kw_quick_exp2", "x", "ex2.approx.ftz", "x < -126.0f ? 0.0f : exp2f(x)"),
    "kw_quick_reciprocal": _instruction(
        "kw_quick_reciprocal", "x", "rcp.approx.ftz",
        "fabsf(x) > 0x1p126f ? copysignf(0.0f, x) : __frcp_rn(fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x)"),
    "kw_quick_rsqrt": _instruction("kw_quick_rsqrt", "x", "rsqrt.approx.ftz",
                                   "__frsqrt_rn(fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x)"),
    "kw_least": _instruction("kw_least", "a b", "min.NaN", "(a <= b || a != a) ? a : b", 800, _EXTREMUM),
    "kw_greatest": _instruction("kw_greatest", "a b", "max.NaN", "(a >= b || a != a) ? a : b", 800, _EXTREMUM),
    # What several functions share.
    "kw_quick_inverse": device_text("kw_quick_inverse", ("x",), """
  const float r = kw_quick_reciprocal(x);
  return fmaf(fmaf(-x, r, 1.0f), r, r);""", "",
                                  "1 / x for x >= 2^-126, zero above 2^126: an approximation, and Newton's step."),
    "kw_decay": device_text("kw_decay", ("x",), """
  const float t = x * 1.44269514f, p = kw_quick_exp2(t);
  return fmaf(p, __saturatef(fmaf(t, 1.90465421e-9f, fmaf(t, -0.693147182f, x))), p);""", "",
                          "exp(x) for x <= 0, zero below 2^-126. The exponent is rounded downward, so that what it\n"
                          "lacks is between 0 and 1, but for -inf, where saturation makes zero of what is no number."),
    "kw_quick_expm1": device_text("kw_quick_expm1", ("x",), f"""
{_polynomial("q", "x", 0.499999046, 0.166648939, 0.0415582955, 0.00803933106, 0.00101464917)}
  const float near = x * fmaf(x, q, 1.0f), far = kw_quick_exp2(x * 1.44269502f) - 1.0f;
  return x > -0.75f ? near : far;""", "",
                                "expm1(x) for x <= 0. The polynomial, for x > -0.75, is good to 2^-25.8."),
    "kw_softplus_tail": device_text("kw_softplus_tail", ("x",), f"""
  const float y = kw_least(x, 104.0f), t = y * -1.44269502f, power = exp2f(t);
  const float u = fmaf(power, fmaf(t, 1.90465421e-9f, fmaf(t, -0.693147182f, -y)), power);
{_polynomial("q", "u", 1.0, -0.499999315, 0.333304644, -0.249580204, 0.196921229, -0.153449923, 0.106614254,
             -0.0574614108, 0.0200892109, -0.00329130725)}
  return u * q;""", "log1p(exp(-x))",
                                  "log(1 + exp(-x)) for x >= 0. The polynomial is log1p(u) / u on [0, 1] to 2^-27.5."),
    # The functions of the expressions.
    "kw_maximum": device_text("kw_maximum", ("a", "b"), "  return kw_greatest(a, b);", "(a > b || a != a) ? a : b",
                            "NaN if either is NaN."),
    "kw_minimum": device_text("kw_minimum", ("a", "b"), "  return kw_least(a, b);", "(a < b || a != a) ? a : b",
                            "NaN if either is NaN."),
    "kw_divide": device_text("kw_divide", ("x", "y"), """
  const float scale = fmaxf(fabsf(x), fabsf(y)) < 0x1p32f ? 0x1p64f : 0x1p-4f, n = x * scale, d = y * scale;
  const float first = kw_quick_reciprocal(d), r = fmaf(fmaf(-d, first, 1.0f), first, first), rough = __fmul_rz(n, r);
  const float near = fmaf(fmaf(-d, rough, n), r, rough), q = fmaf(fmaf(-d, near, n), r, near);
  return fabsf(q) > 0.0f ? q : n * first * 0x1.00001p0f;""", "x / y",
                           "x / y. With the scale, what is left of x is a float wherever the quotient is at least\n"
                           "2^-126; a product rounded toward zero is infinite only if x is. Where corrections lose an\n"
                           "infinity or a zero's sign, what preceded them holds, enlarged lest its error hide one."),
    "kw_sqrt": device_text("kw_sqrt", ("x",), """
  const bool small = x < 0x1p-96f;
  const float v = small ? x * 0x1p64f : x, y = kw_quick_rsqrt(v), near = v * y;
  const float s = fmaf(fmaf(-near, near, v), 0.5f * y, near);
  return x == 0.0f || x == INFINITY ? x : (small ? s * 0x1p-32f : s);""", "sqrt(x)"),
    "kw_rsqrt": device_text("kw_rsqrt", ("x",), "  return rsqrtf(x);", "rsqrt(x)"),
    "kw_erf": device_text("kw_erf", ("x",), f"""
  const float s = x * x, a = fminf(fabsf(x), 4.0f);
{_polynomial("p", "s", 0.12837915, -0.37612447, 0.112800285, -0.026601795, 0.0044463924)}
{_polynomial("q", "a", -1.6281011, -0.9171773, -0.15177879, 0.032937452, -0.004599125, 0.00030222431)}
  const float near = fmaf(x, p, x), far = copysignf(1.0f - kw_quick_exp2(a * q), x);
  return fabsf(x) >= 0.625f ? far : near;""", "erf(x)",
                        "Up to 0.625 x times a polynomial of its square, to 2^-26.1; beyond, 1 - 2^p, where p is\n"
                        "one of |x|, to 2^-26.8."),
    "kw_gelu_erf": device_text("kw_gelu_erf", ("x",), f"""
  const float h = 0.5f * x, k = fminf(fabsf(h), 16.0f);
{_polynomial("q", "k", -2.3022103, -1.8368341, -0.41996196, 0.112993695, -0.00435011, -0.011941995, 0.0050516557,
             -0.00072767859)}
  const float below = -h - fabsf(h);
  return fmaf(-k, kw_quick_exp2(k * q), -below);""", "0.5 * x * (1.0 + erf(x * 0.70710678118654752))",
                             "max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, where erfc is a power of two whose exponent\n"
                             "is a polynomial that decreases for ever, to 2^-25.9 of the result for x > 0. Of a\n"
                             "negative x the maximum is -0, and so is what vanishes."),
    "kw_sigmoid": device_text("kw_sigmoid", ("x",), """
  const float y = kw_quick_inverse(fmaf(expf(-kw_greatest(x, -88.7228317f)), 0.25f, 0.25f)) * 0.25f;
  return x < -88.7228317f ? 0.0f : y;""", "1.0 / (1.0 + exp(-x))",
                            "Zero where exp(-x) is no float. Of a quarter of 1 + exp(-x) the inverse is none before."),
    "kw_gelu_tanh": device_text("kw_gelu_tanh", ("x",), """
  const float t = kw_least(x * fmaf(x * x, -0.10294324f, -2.3022082f), 127.0f);
  return x * kw_quick_inverse(1.0f + kw_quick_exp2(t));""",
                              "x / (1.0 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))",
                              "x * (1 + tanh(u)) / 2 is x * sigmoid(2 u), which does not cancel."),
    "kw_mish": device_text("kw_mish", ("x",), """
  const float t = expf(kw_least(x, 20.0f)), m = t * (t + 2.0f), y = x * (m * kw_quick_inverse(m + 2.0f));
  return x > 20.0f ? x : y;""", "const double t = exp(x > 20.0 ? 20.0 : x), m = t * (t + 2.0); "
                         "return x > 20.0 ? x : x * (m / (m + 2.0));",
                         "x * tanh(log1p(t)), t = exp(x): the hyperbolic tangent is m / (m + 2) with m = t * (t + 2)."),
    "kw_softplus": device_text("kw_softplus", ("x", "beta", "threshold"), """
  const float z = x * beta, y = (kw_greatest(z, 0.0f) + kw_softplus_tail(fabsf(z))) * (1.0f / beta);
  return z > threshold ? x : y;""", "x * beta > threshold ? x : log1p(exp(x * beta)) / beta"),
    "kw_logsigmoid": device_text("kw_logsigmoid", ("x",), """
  return kw_least(x, 0.0f) - kw_softplus_tail(fabsf(x));""", "(x > 0.0 ? 0.0 : x) - log1p(exp(-fabs(x)))"),
    "kw_logaddexp": device_text("kw_logaddexp", ("a", "b"), """
  const float high = kw_greatest(a, b), apart = fabsf(a - b);
  return high + kw_softplus_tail(a == b ? 0.0f : apart);""",
                              "(a > b || a != a ? a : b) + kw_softplus_tail(a == b ? 0.0 : fabs(a - b))",
                              "log(exp(a) + exp(b)).",),
    "kw_elu": device_text("kw_elu", ("x", "alpha"), """
  const float y = alpha * kw_quick_expm1(x);
  return x > 0.0f ? x : y;""", "x > 0.0 ? x : alpha * expm1(x)"),
    "kw_celu": device_text("kw_celu", ("x", "alpha"), """
  const float z = x * (1.0f / alpha), y = alpha * (alpha > 0.0f ? kw_quick_expm1(z) : expm1f(z));
  return x > 0.0f ? x : y;""", "x > 0.0 ? x : alpha * expm1(x / alpha)", "As PyTorch does on a GPU."),
    "kw_selu": device_text("kw_selu", ("x",), """
  const float below = 1.75809932f * kw_quick_expm1(x), above = 1.05070102f * x;
  return x > 0.0f ? above : below;""", "x > 0.0 ? 1.0507009873554805 * x : 1.7580993408473766 * expm1(x)"),
    "kw_hardswish": device_text("kw_hardswish", ("x",), """
  return x * kw_least(kw_greatest(x + 3.0f, 0.0f), 6.0f) * 0.16666667f;""", """
  const double y = x + 3.0; return x * (y < 0.0 ? 0.0 : (y > 6.0 ? 6.0 : y)) * 0.16666666666666667;"""),
    "kw_hardsigmoid": device_text("kw_hardsigmoid", ("x",), """
  return kw_least(kw_greatest(x + 3.0f, 0.0f), 6.0f) * 0.16666667f;""", """
  const double y = x + 3.0; return (y < 0.0 ? 0.0 : (y > 6.0 ? 6.0 : y)) * 0.16666666666666667;"""),
    "kw_softsign": device_text("kw_softsign", ("x",), """
  return x * kw_quick_inverse(0.25f + 0.25f * fabsf(x)) * 0.25f;""", "x / (1.0 + fabs(x))"),
}
"""Definitions by name, each behind those that it uses."""
