"""Scalar functions and reduction helpers of the generated CUDA loops, as text.

``SCALAR_SNIPPETS`` maps the name of a device function to its definition, for float and double.
The functions are those of :mod:`kernelwright.ir.scalar`; they are as accurate as CUDA's mathematical
functions (never the ``__expf`` family) and NaN propagates as in PyTorch. Those of
:mod:`kernelwright.codegen.cuda.math_branch_free` take no branch, and those of
:mod:`kernelwright.codegen.cuda.math_rounded` stand for some of them where operands were rounded.
``scalar_snippets`` adds what a snippet uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelwright.codegen.cuda.math_branch_free import STRAIGHT
from kernelwright.codegen.cuda.math_rounded import ROUNDED

_HEAD = "static __device__ __forceinline__"


def _both(name: str, parameters: str, text: str) -> str:
    """``name`` for float and for double: in ``text``, R is the type, 1.5_ a literal, f@ a function of <math.h>."""
    lines = []
    for real, suffix in (("float", "f"), ("double", "")):
        body = re.sub(r"(?<=[0-9.])_", suffix, text).replace("@(", suffix + "(")
        signature = ", ".join(f"{real} {parameter}" for parameter in parameters.split())
        body = re.sub(r"\bR\b", real, body)
        lines.append(f"{_HEAD} {real} {name}({signature}) {{ {body} }}")
    return "\n".join(lines) + "\n"


def _noted(comment: str, name: str, parameters: str, text: str) -> str:
    return f"// {comment}\n" + _both(name, parameters, text)


_LOGSUMEXP = r"""
// Running log-sum-exp: the sum of the exponentials is exp(base) * scaled, base = top where top is finite, else 0.
template <typename T>
static __device__ __forceinline__ T kw_exponent_base(T top) { return top - top == T(0) || top != top ? top : T(0); }
static __device__ __forceinline__ float kw_exponential(float x) { return expf(x); }
static __device__ __forceinline__ double kw_exponential(double x) { return exp(x); }

// Adds `count` values to the pair (top, scaled).
template <int count, typename T, typename Wide>
static __device__ __forceinline__ void kw_logsumexp_add(T& top, Wide& scaled, const T* value) {
  T highest = top;
#pragma unroll
  for (int i = 0; i < count; ++i) highest = (highest > value[i] || highest != highest) ? highest : value[i];
  const T base = kw_exponent_base(highest);
  T part = T(0);
#pragma unroll
  for (int i = 0; i < count; ++i) part += kw_exponential(value[i] - base);
  scaled = scaled * Wide(kw_exponential(top - base)) + Wide(part);
  top = highest;
}

// Adds the pair (other_top, other_scaled) to the pair (top, scaled).
template <typename T, typename Wide>
static __device__ __forceinline__ void kw_logsumexp_merge(T& top, Wide& scaled, T other_top, Wide other_scaled) {
  const T highest = (top > other_top || top != top) ? top : other_top;
  const T base = kw_exponent_base(highest);
  // A side without elements has scaled = 0 and top = -inf: its factor is exp(-inf) = 0.
  const T place = kw_exponent_base(top) == top ? top - base : top;
  const Wide mine = scaled * Wide(kw_exponential(place));
  const T other_place = kw_exponent_base(other_top) == other_top ? other_top - base : other_top;
  const Wide other = other_scaled * Wide(kw_exponential(other_place));
  scaled = mine + other;
  top = highest;
}

template <typename T, typename Wide>
static __device__ __forceinline__ T kw_logsumexp_result(T top, Wide scaled) {
  return kw_exponent_base(top) + log(T(scaled));
}
"""

_VECTOR = r"""
// Four neighbours in one aligned access (16 bytes for float).
template <typename T>
struct alignas(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) kw_four { T at[4]; };
template <typename T>
static __device__ __forceinline__ void kw_read4(T* to, const T* from) {
  const kw_four<T> four = *reinterpret_cast<const kw_four<T>*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = four.at[i];
}
template <typename T>
static __device__ __forceinline__ void kw_write4(T* to, const T* from) {
  kw_four<T> four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.at[i] = from[i];
  *reinterpret_cast<kw_four<T>*>(to) = four;
}
"""

_FLOAT16 = r"""
// A float16 in memory: read as a float, rounded to the nearest (halves to even) where a float is assigned.
// The processor converts in one instruction; elsewhere the same is done by integer operations.
static __device__ __forceinline__ unsigned short kw_float16_bits(float x) {
#ifdef __CUDA_ARCH__
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  unsigned size;
  memcpy(&size, &x, 4);
  const unsigned sign = (size >> 16) & 0x8000u;
  size &= 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7e00u | sign;
  if (size >= 0x47800000u) return 0x7c00u | sign;
  if (size >= 0x38800000u) return ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13) | sign;
  const float moved = fabsf(x) + 0.5f;  // rounds to multiples of 2^-24
  memcpy(&size, &moved, 4);
  return (size - 0x3f000000u) | sign;
#endif
}
static __device__ __forceinline__ float kw_float16_value(unsigned short bits) {
  float x;
#ifdef __CUDA_ARCH__
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
#else
  const unsigned exponent = (bits >> 10) & 31u, digits = bits & 1023u;
  x = exponent == 0 ? ldexpf(float(digits), -24)
      : exponent == 31 ? (digits ? NAN : INFINITY) : ldexpf(float(1024u + digits), int(exponent) - 25);
  x = (bits & 0x8000u) ? -x : x;
#endif
  return x;
}
// Two of them, the first one in the lower half.
static __device__ __forceinline__ unsigned kw_float16_pair(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return bits;
#else
  return kw_float16_bits(x) | unsigned(kw_float16_bits(y)) << 16;
#endif
}
struct kw_float16 {
  unsigned short bits;
  __device__ __forceinline__ operator float() const { return kw_float16_value(bits); }
  __device__ __forceinline__ void operator=(float x) { bits = kw_float16_bits(x); }
};
"""

_BFLOAT16 = r"""
// A bfloat16 in memory: read as a float, rounded to the nearest (halves to even) where a float is assigned.
static __device__ __forceinline__ unsigned short kw_bfloat16_bits(float x) {
  unsigned short bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
  unsigned size;
  memcpy(&size, &x, 4);
  bits = x != x ? 0x7fc0u : (size + 0x7fffu + ((size >> 16) & 1u)) >> 16;
#endif
  return bits;
}
static __device__ __forceinline__ float kw_bfloat16_value(unsigned short bits) {
  const unsigned size = unsigned(bits) << 16;
  float x;
  memcpy(&x, &size, 4);
  return x;
}
// Two of them, the first one in the lower half.
static __device__ __forceinline__ unsigned kw_bfloat16_pair(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return bits;
#else
  return kw_bfloat16_bits(x) | unsigned(kw_bfloat16_bits(y)) << 16;
#endif
}
struct kw_bfloat16 {
  unsigned short bits;
  __device__ __forceinline__ operator float() const { return kw_bfloat16_value(bits); }
  __device__ __forceinline__ void operator=(float x) { bits = kw_bfloat16_bits(x); }
};
"""

_REVERSE = r"""
template <typename T>
static __device__ __forceinline__ void kw_reverse4(T* x) {
  const T first = x[0], second = x[1];
  x[0] = x[3], x[1] = x[2], x[2] = second, x[3] = first;
}
"""

_TAKE = r"""
// Takes value x at place p if it is the {name}: NaN before numbers, of equals the first.
template <typename T, typename I>
static __device__ __forceinline__ void kw_take_{name}(T& best, I& place, T x, I p) {{
  const bool better = x {sign} best || (x != x && best == best);
  const bool same = x == best || (x != x && best != best);
  if (better || (same && p < place)) best = x, place = p;
}}
"""

_UNFUSED = r"""
// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_{name}(float x, float y) {{ return __f{name}_rn(x, y); }}
static __device__ __forceinline__ double kw_unfused_{name}(double x, double y) {{ return __d{name}_rn(x, y); }}
"""

SCALAR_SNIPPETS: dict[str, str] = {
    **STRAIGHT,
    **ROUNDED,
    "kw_float16": _FLOAT16.lstrip("\n"),
    "kw_bfloat16": _BFLOAT16.lstrip("\n"),
    "kw_unfused_add": _UNFUSED.format(name="add").lstrip("\n"),
    "kw_unfused_sub": _UNFUSED.format(name="sub").lstrip("\n"),
    "kw_multiply_add": _both("kw_multiply_add", "x y z", "return fma@(x, y, z);"),
    "kw_abs": _both("kw_abs", "x", "return fabs@(x);"),
    "kw_pow": _both("kw_pow", "x y", "return pow@(x, y);"),
    "kw_sign": _both("kw_sign", "x", "return R((x > 0) - (x < 0));"),
    "kw_floor": _both("kw_floor", "x", "return floor@(x);"),
    "kw_ceil": _both("kw_ceil", "x", "return ceil@(x);"),
    "kw_round": _noted("To the nearest, halves to even.", "kw_round", "x", "return rint@(x);"),
    "kw_trunc": _both("kw_trunc", "x", "return trunc@(x);"),
    "kw_exp": _both("kw_exp", "x", "return exp@(x);"),
    "kw_expm1": _both("kw_expm1", "x", "return expm1@(x);"),
    "kw_log": _both("kw_log", "x", "return log@(x);"),
    "kw_log1p": _both("kw_log1p", "x", "return log1p@(x);"),
    "kw_log10": _both("kw_log10", "x", "return log10@(x);"),
    "kw_log2": _both("kw_log2", "x", "return log2@(x);"),
    "kw_sin": _both("kw_sin", "x", "return sin@(x);"),
    "kw_cos": _both("kw_cos", "x", "return cos@(x);"),
    "kw_tan": _both("kw_tan", "x", "return tan@(x);"),
    "kw_asin": _both("kw_asin", "x", "return asin@(x);"),
    "kw_acos": _both("kw_acos", "x", "return acos@(x);"),
    "kw_atan": _both("kw_atan", "x", "return atan@(x);"),
    "kw_atan2": _both("kw_atan2", "y x", "return atan2@(y, x);"),
    "kw_sinh": _both("kw_sinh", "x", "return sinh@(x);"),
    "kw_cosh": _both("kw_cosh", "x", "return cosh@(x);"),
    "kw_asinh": _both("kw_asinh", "x", "return asinh@(x);"),
    "kw_acosh": _both("kw_acosh", "x", "return acosh@(x);"),
    "kw_atanh": _both("kw_atanh", "x", "return atanh@(x);"),
    "kw_hypot": _both("kw_hypot", "x y", "return hypot@(x, y);"),
    "kw_copysign": _both("kw_copysign", "x y", "return copysign@(x, y);"),
    "kw_fmod": _both("kw_fmod", "x y", "return fmod@(x, y);"),
    "kw_remainder": _noted(
        "With the sign of the divisor, as PyTorch computes it.", "kw_remainder", "x y",
        "const R rest = fmod@(x, y); return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;"),
    "kw_floor_divide": _noted(
        "The floor of the quotient before its rounding, as PyTorch computes it.", "kw_floor_divide", "x y",
        "const R rest = fmod@(x, y), quotient = x / y; "
        "const R whole = (x - rest) / y - R(rest != 0 && (y < 0) != (rest < 0)), low = floor@(whole); "
        "const R near = whole != 0 ? low + R(whole - low > 0.5_) : copysign@(0.0_, quotient); "
        "return y == 0 ? quotient : near;"),
    "kw_tanh": _both("kw_tanh", "x", "return tanh@(x);"),
    "kw_logaddexp2": _noted(
        "log2(2^a + 2^b).", "kw_logaddexp2", "a b",
        "const R high = a > b || a != a ? a : b, apart = a == b ? 0.0_ : fabs@(a - b); "
        "return high + log1p@(exp2@(-apart)) * 1.44269504088896340736_;"),
    "kw_erfcx": _both("kw_erfcx", "x", "return erfcx@(x);"),
    "kw_take_max": _TAKE.format(name="max", sign=">").lstrip("\n"),
    "kw_take_min": _TAKE.format(name="min", sign="<").lstrip("\n"),
    "kw_reverse4": _REVERSE.lstrip("\n"),
    "kw_logsumexp": _LOGSUMEXP.lstrip("\n"),
    "kw_vector": _VECTOR.lstrip("\n"),
}
"""Definitions by name: the ``kw_*`` functions of :mod:`kernelwright.ir.scalar`, and helpers of the kernels.

``kw_float16`` defines the type of that name, ``kw_float16_bits`` and ``kw_float16_value``, ``kw_bfloat16`` likewise;
``kw_logsumexp`` defines ``kw_logsumexp_add<n>``, ``kw_logsumexp_merge`` and ``kw_logsumexp_result``;
``kw_vector`` defines ``kw_read4`` and ``kw_write4``.
"""

_NAME = re.compile(r"\bkw_\w+")
_DEFINED_BY = {
    "kw_read4": "kw_vector",
    "kw_write4": "kw_vector",
    "kw_logsumexp_merge": "kw_logsumexp",
    "kw_logsumexp_result": "kw_logsumexp",
    "kw_logsumexp_add": "kw_logsumexp",
    **{f"kw_{kind}_{part}": f"kw_{kind}" for kind in ("float16", "bfloat16") for part in ("bits", "value")},
}


def snippets_of(text: str) -> frozenset[str]:
    """The scalar snippets that define the ``kw_*`` functions and types of a text."""
    return frozenset({_DEFINED_BY.get(name, name) for name in _NAME.findall(text)} & SCALAR_SNIPPETS.keys())


def scalar_snippets(names: Iterable[str]) -> str:
    """The text of the named snippets and of those that they use, each once, in a fixed order.

    Raises ValueError for a name that ``SCALAR_SNIPPETS`` lacks.
    """
    wanted = set(names)
    unknown = wanted - SCALAR_SNIPPETS.keys()
    if unknown:
        raise ValueError(f"unknown scalar snippets: {', '.join(sorted(unknown))}")
    used: set[str] = set()
    while more := wanted - used:
        used |= more
        wanted |= {other for name in more for other in snippets_of(SCALAR_SNIPPETS[name])}
    return "\n".join(text for name, text in SCALAR_SNIPPETS.items() if name in used)
