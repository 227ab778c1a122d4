"""The straight lines that compute functions of floats are as exact as CUDA's functions, by measure over all floats.

The measures run with the device's approximations exact, and as far off as the PTX manual lets them be, either way.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct

import pytest
import torch
import torch.nn.functional as F

from kernelwright.codegen.cuda.emulate import compile_emulated
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets, snippets_of

MEASURE = r"""
static int kw_test_way;
static float kw_test_off(float y, double error) {
  unsigned bits;
  memcpy(&bits, &y, 4);
  const int way = kw_test_way < 2 ? kw_test_way : ((bits * 2654435761u) >> 31 ? 1 : -1);
  return y == 0.0f || y == 1.0f && way > 0 ? y : float(double(y) * (1.0 + way * error));
}
#define exp2f(x) kw_test_off(exp2f(x), 0x1p-22)
#define __frcp_rn(x) kw_test_off(__frcp_rn(x), 0x1p-23)
#define __frsqrt_rn(x) kw_test_off(__frsqrt_rn(x), 0x1.13p-23)
#define rsqrtf(x) kw_test_off(rsqrtf(x), 0x1p-23)
"""
HARNESS = r"""
// The greatest error, in units of the last place of the true value, beyond `least` and a share of the true value.
template <typename F, typename G>
static void kw_test_measure(F function, G exact, double least, unsigned first, unsigned step, unsigned count,
                            double* worst, unsigned* where) {
  *worst = 0.0, *where = 0;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned bits = first + i * step;
    float x;
    memcpy(&x, &bits, 4);
    const float y = function(x);
    const double truth = exact(double(x));
    double error = 0.0;
    if (truth != truth || y != y) error = (truth != truth) == (y != y) ? 0.0 : INFINITY;
    else if (fabs(truth) >= 0x1.ffffffp127) error = y == copysign(INFINITY, truth) ? 0.0 : INFINITY;
    else if (truth != 0.0 || y != 0.0f) {
      const double unit = truth == 0.0 ? 0x1p-149 : fmax(ldexp(1.0, ilogb(truth) - 23), 0x1p-149);
      error = fmax(fabs(double(y) - truth) - least, 0.0) / unit;
    }
    if (!(error <= *worst)) *worst = error, *where = bits;
  }
}
"""
LEAST = 2.0**-126
NONE = (math.inf, math.inf)

#: By name: the call, the true value, an error that is no matter, and bounds on the error in units of the last place for
#: numbers from 0 on and below: where the approximations are exact, and where they err.
FUNCTIONS: dict[str, tuple[str, str, float, tuple[float, float], tuple[float, float]]] = {
    "erf": ("kw_erf(x)", "erf(x)", 0, (1.35, 3), (1.35, 3)),
    "gelu": ("kw_gelu_erf(x)", "0.5 * x * erfc(-x * 0.7071067811865475244)", 0, (1.3, 5.2), NONE),
    "gelu_tanh": ("kw_gelu_tanh(x)", "x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))", 0,
                  (2.2, 4.3), NONE),
    "sigmoid": ("kw_sigmoid(x)", "1 / (1 + exp(-x))", LEAST, (1.6, 2.4), (2.6, 6.6)),
    "silu": ("x * kw_sigmoid(x)", "x / (1 + exp(-x))", 100 * LEAST, (2.3, 4.3), (3.1, 6.8)),
    "mish": ("kw_mish(x)", "x * tanh(log1p(exp(x)))", 100 * LEAST, (3.1, 5.4), (4.4, 8.6)),
    "softplus": ("kw_softplus(x, 1.0f, 20.0f)", "x > 20 ? x : log1p(exp(x))", 0, (2, 4.4), (2.7, 6.7)),
    "softplus of 3 x": ("kw_softplus(x, 3.0f, 20.0f)",
                        "float(x) * 3.0f > 20 ? x : log1p(exp(float(x) * 3.0f)) / 3", 0, (3.1, 6.2), (3.3, 7.4)),
    "logsigmoid": ("kw_logsigmoid(x)", "(x > 0 ? 0 : x) - log1p(exp(-fabs(x)))", 0, (2.7, 6.7), (2, 4.4)),
    "logaddexp": ("kw_logaddexp(x, 1.0f)", "fabs(x) > 100 ? fmax(x, 1) : fmax(x, 1) + log1p(exp(-fabs(x - 1)))", 0,
                  (1.3, 2.4), (1.1, 1.8)),
    "elu": ("kw_elu(x, 1.0f)", "x > 0 ? x : expm1(x)", 0, (0, 0), (1.5, 3.3)),
    "selu": ("kw_selu(x)", "x > 0 ? 1.0507009873554805 * x : 1.7580993408473766 * expm1(x)", 0, (1.1, 1.1), (2.8, 6.3)),
    "celu": ("kw_celu(x, 1.7f)", "x > 0 ? x : double(1.7f) * expm1(x / double(1.7f))", 0, (0, 0), (3.2, 6.3)),
    "softsign": ("kw_softsign(x)", "x / (1 + fabs(x))", 0, (2, 2), (2, 2)),
    "sqrt": ("kw_sqrt(x)", "sqrt(x)", 0, (0.5001, 0.5001), (0, 0)),
    "rsqrt": ("kw_rsqrt(x)", "1 / sqrt(x)", 0, (0.5001, 2.6), (0, 0)),
    # Results below 2^-126 may be rounded twice.
    "reciprocal": ("kw_divide(1.0f, x)", "1 / x", 0, (0.76, 0.76), (0.76, 0.76)),
    "3 / x": ("kw_divide(3.0f, x)", "3 / x", 0, (0.76, 0.76), (0.76, 0.76)),
    "x / 3": ("kw_divide(x, 3.0f)", "x / 3", 0, (0.5001, 0.5001), (0.5001, 0.5001)),
}
EXACT, ABOVE, BELOW, EITHER = 0, 1, -1, 2


def bits_of(x: float) -> int:
    return struct.unpack("I", struct.pack("f", x))[0]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    calls = {name: call for name, (call, *_) in FUNCTIONS.items()}
    text = MEASURE + scalar_snippets(snippets_of(" ".join(calls.values()))) + HARNESS
    for number, (call, true, least, *_) in enumerate(FUNCTIONS.values()):
        text += f"""
static float kw_test_function{number}(float x) {{ return {call}; }}
static double kw_test_exact{number}(double x) {{ return {true}; }}
extern "C" void measure{number}(int way, unsigned first, unsigned step, unsigned count, double* worst,
                                unsigned* where) {{
  kw_test_way = way;
  kw_test_measure(kw_test_function{number}, kw_test_exact{number}, {least!r}, first, step, count, worst, where);
}}
extern "C" void apply{number}(const float* x, float* y, int count) {{
  kw_test_way = 0;
  for (int i = 0; i < count; ++i) y[i] = kw_test_function{number}(x[i]);
}}
"""
    return compile_emulated(text)


def worst(library: ctypes.CDLL, name: str, way: int, first: float, last: float, step: int) -> tuple[float, float]:
    """The greatest error between two floats of one sign, over every ``step``th of those between, and where it is."""
    error, place = ctypes.c_double(), ctypes.c_uint()
    count = (bits_of(last) - bits_of(first)) // step + 1
    getattr(library, f"measure{list(FUNCTIONS).index(name)}")(
        way, ctypes.c_uint(bits_of(first)), ctypes.c_uint(step), ctypes.c_uint(count), ctypes.byref(error),
        ctypes.byref(place))
    return error.value, struct.unpack("f", struct.pack("I", place.value))[0]


def applied(library: ctypes.CDLL, name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    getattr(library, f"apply{list(FUNCTIONS).index(name)}")(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), len(x))
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_those_of_the_rounding(library, name: str) -> None:
    """Over the whole range of floats; densely where the values are of the size that networks have."""
    for sign, bounds in zip((1.0, -1.0), FUNCTIONS[name][3:], strict=True):
        for way, bound in zip((EXACT, ABOVE, BELOW, EITHER), (bounds[0], *[bounds[1]] * 3), strict=True):
            for first, last, step in ((0.0, math.inf, 16411), (2.0**-8, 128.0, 1031)):
                error, place = worst(library, name, way, sign * first, sign * last, step)
                assert error <= bound, f"{name}({place!r}) is {error} units off"


REFERENCES = {
    "erf": torch.erf, "sigmoid": torch.sigmoid, "silu": F.silu, "mish": F.mish, "softplus": F.softplus,
    "logsigmoid": F.logsigmoid, "elu": F.elu, "selu": F.selu, "celu": lambda x: F.celu(x, 1.7), "softsign": F.softsign,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "x / 3": lambda x: x / 3, "3 / x": lambda x: 3 / x,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values_are_those_of_pytorch(library, name: str) -> None:
    """Zeros and their signs, infinities, NaN, the least numbers and the greatest."""
    least, tiny, most = 2.0**-149, 2.0**-126, torch.finfo(torch.float32).max
    x = torch.tensor([0.0, math.inf, math.nan, least, tiny, 80.0, 1e30, most])
    x = torch.cat([x, -x])
    y, wanted = applied(library, name, x), REFERENCES[name](x.double())
    # A limit of x times a number that vanishes: nothing, whatever its sign.
    wanted = torch.where(wanted.abs() < 2.0**-149, torch.zeros_like(wanted).copysign(wanted), wanted).float()
    near = torch.isclose(y, wanted, rtol=3e-7, atol=2.0**-149, equal_nan=True)
    assert near.all(), (x[~near], y[~near], wanted[~near])
    if name != "gelu":
        zero = x == 0
        assert torch.equal(y[zero].signbit(), wanted[zero].signbit())


def test_extrema_and_sums_of_logarithms_hold_infinities_and_nan() -> None:
    text = scalar_snippets(["kw_maximum", "kw_minimum", "kw_logaddexp"]) + """
extern "C" void pairs(const float* a, const float* b, float* y, int count) {
  for (int i = 0; i < count; ++i) {
    y[3 * i] = kw_maximum(a[i], b[i]), y[3 * i + 1] = kw_minimum(a[i], b[i]), y[3 * i + 2] = kw_logaddexp(a[i], b[i]);
  }
}
"""
    values = torch.tensor([0.0, 1.0, -2.5, 90.0, -90.0, math.inf, -math.inf, math.nan])
    a, b = (part.reshape(-1).contiguous() for part in torch.meshgrid(values, values, indexing="ij"))
    y = torch.empty(len(a), 3)
    compile_emulated(text).pairs(*(ctypes.c_void_p(t.data_ptr()) for t in (a, b, y)), len(a))
    wanted = torch.stack([torch.maximum(a, b), torch.minimum(a, b), torch.logaddexp(a.double(), b.double()).float()], 1)
    assert torch.allclose(y, wanted, rtol=2e-7, atol=1e-45, equal_nan=True)


def test_gelu_is_at_least_as_exact_as_the_formula_of_pytorch(library) -> None:
    """Also below zero, where the formula cancels; errors are relative to the true value."""
    for place in torch.arange(-5.0, 5.0, 0.25):
        x = torch.linspace(float(place), float(place) + 0.25, 20001)
        truth = 0.5 * x.double() * torch.erfc(-x.double() * math.sqrt(0.5))
        formula = 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))
        mine, theirs = ((y.double() - truth).abs().max() / truth.abs().max()
                        for y in (applied(library, "gelu", x), formula))
        assert mine <= max(1.05 * theirs, 2.0**-23)


def test_snippets_bring_what_they_use() -> None:
    for name in SCALAR_SNIPPETS:
        text = scalar_snippets([name])
        defined = set(re.findall(r"(?:float|double|T|void|short|bool|struct|alignas[^{]*) (kw_\w+)\b", text))
        assert set(re.findall(r"\bkw_\w+", text)) <= defined, name
