"""Functions behind products whose operands have 11 bits or fewer, as text: fewer instructions, up to 2^-18 off.

Where the operands of a contraction are rounded as PyTorch rounds them to TF32 (`Contraction`, scheme fp16), or have 16
bits by themselves, its results are off by some 2^-12 of their size. A function of them loses nothing that counts by an
error of 2^-18 of its own, and what makes the others exact (`math_branch_free`) is half of their instructions. More
would count: of inputs that are zero, or have few bits, nothing is rounded, and results are as PyTorch's but for what
their functions are off, which a certificate lets be some 2^-17. Totals of positions are another matter: what rounding
adds is gone from a mean of thousands, what a function is off is not.

Instructions are those of one of eight unrolled steps for sm_90a, and what `math_branch_free` has of the same. Errors
are in units of the last place, with the device's approximations as far off as they may be: from -4 to 4 (in brackets
`math_branch_free`, over all floats), and over all floats, as an exponent that is rounded once is the further off the
larger it is.

=========  ============  ====  ===========  ===  =================================================================
function   instructions  were  -4 to 4      all  remarks
=========  ============  ====  ===========  ===  =================================================================
sigmoid    5             17    11 (4.5)     61   zero where exp(-x) is no float, as before
silu       6             18    10 (5.0)     61
mish       9             19    12 (7.0)     63   zero below -87.3
decay      2             5     8            61   exp(x) of x <= 0, zero below -87.3
tanh       9             14    23           23   near 1/4; 9 below, 2.6 from 1 on
exp        2             8     8            65   zero below -87.3
gelu_tanh  8             10    6.0 (4.3)    6.0  for x > 0; below, the exponent's rounding, as before
=========  ============  ====  ===========  ===  =================================================================
"""

from __future__ import annotations

import re

from kernelwright.codegen.cuda.math_branch_free import device_text

ROUNDED: dict[str, str] = {
    "kw_rounded_sigmoid": device_text("kw_rounded_sigmoid", ("x",), """
  return kw_quick_reciprocal(fmaf(kw_quick_exp2(x * -1.44269502f), 0.25f, 0.25f)) * 0.25f;""", "",
                                      "1 / (1 + exp(-x)), as exact as rounded operands leave it."),
    "kw_rounded_mish": device_text("kw_rounded_mish", ("x",), """
  const float t = kw_quick_exp2(kw_least(x * 1.44269502f, 30.0f)), m = t * (t + 2.0f);
  return x * (m * kw_quick_reciprocal(m + 2.0f));""", "",
                                   "x * tanh(log(1 + exp(x))), as exact as rounded operands leave it."),
    "kw_rounded_tanh": device_text("kw_rounded_tanh", ("x",), """
  const float far = fmaf(-2.0f, kw_quick_reciprocal(1.0f + kw_quick_exp2(x * 2.88539004f)), 1.0f);
  const float square = x * x, near = x * fmaf(square, fmaf(square, 0.12876433f, -0.33324572f), 1.0f);
  return fabsf(x) < 0.25f ? near : far;""", "",
                                   "1 - 2 / (1 + exp(2 x)), near zero a polynomial, as exact as rounded operands need"),
    "kw_rounded_decay": device_text("kw_rounded_decay", ("x",), """
  return kw_quick_exp2(x * 1.44269502f);""", "", "exp(x) for x <= 0, as exact as rounded operands leave it."),
    "kw_rounded_exp": device_text("kw_rounded_exp", ("x",), """
  return kw_quick_exp2(x * 1.44269502f);""", "", "exp(x), as exact as rounded operands leave it."),
    "kw_rounded_gelu_tanh": device_text("kw_rounded_gelu_tanh", ("x",), """
  const float t = kw_least(x * fmaf(x * x, -0.10294324f, -2.3022082f), 127.0f);
  return x * kw_quick_reciprocal(1.0f + kw_quick_exp2(t));""", "",
                                        "GELU in its tanh form, as exact as rounded operands leave it."),
}
"""Definitions by name, for float alone; they use those of `math_branch_free`."""

_NAMES = re.compile("|".join(rf"\b{name.replace('rounded_', '')}(?=\()" for name in ROUNDED))


def of_rounded(text: str) -> str:
    """A text that calls these functions in place of those that are exact."""
    return _NAMES.sub(lambda found: f"kw_rounded_{found[0].removeprefix('kw_')}", text)
