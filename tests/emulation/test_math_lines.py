"""The straight lines that compute functions of floats are as exact as CUDA's functions, by measure over all floats.

The measures run with the device's approximations exact, and as far off as the PTX manual lets them be, either way.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import subprocess

import pytest
import torch
import torch.nn.functional as F
from contraction_tools import on_hopper

from kernelwright.build.module import compile_cuda, find_cuda_compiler
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
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
// An error beyond `least`, in units of the last place of the true value.
static __device__ double kw_test_error(float y, double truth, double least) {
  if (truth != truth || y != y) return (truth != truth) == (y != y) ? 0.0 : INFINITY;
  if (fabs(truth) >= 0x1.ffffffp127) return y == copysign(INFINITY, truth) ? 0.0 : INFINITY;
  if (truth == 0.0 && y == 0.0f) return 0.0;
  const double unit = truth == 0.0 ? 0x1p-149 : fmax(ldexp(1.0, ilogb(truth) - 23), 0x1p-149);
  return fmax(fabs(double(y) - truth) - least, 0.0) / unit;
}
"""
LEAST = 2.0**-126
NONE = (math.inf, math.inf)

#: By name: the call, the true value, an error that is no matter, and bounds on the error in units of the last place for
#: numbers from 0 on and below: where the approximations are exact, and where they err.
FUNCTIONS: dict[str, tuple[str, str, float, tuple[float, float], tuple[float, float]]] = {
    "erf": ("kw_erf(x)", "erf(x)", 0, (1.45, 3), (1.45, 3)),
    "gelu": ("kw_gelu_erf(x)", "0.5 * x * erfc(-x * 0.7071067811865475244)", 0, (1.3, 5.2), NONE),
    "gelu_tanh": ("kw_gelu_tanh(x)", "x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))", 0,
                  (2.2, 4.3), NONE),
    "sigmoid": ("kw_sigmoid(x)", "1 / (1 + exp(-x))", LEAST / 4, (1.6, 2.6), (2.4, 4.5)),
    "silu": ("x * kw_sigmoid(x)", "x / (1 + exp(-x))", 23 * LEAST, (2.3, 4.8), (2.8, 5)),
    "mish": ("kw_mish(x)", "x * tanh(log1p(exp(x)))", LEAST / 4096, (3.2, 5.4), (4.5, 7)),
    "softplus": ("kw_softplus(x, 1.0f, 20.0f)", "x > 20 ? x : log1p(exp(x))", 0, (2, 4.4), (2.7, 6.7)),
    "softplus of 3 x": ("kw_softplus(x, 3.0f, 20.0f)",
                        "float(x) * 3.0f > 20 ? x : log1p(exp(float(x) * 3.0f)) / 3", 0, (3.1, 6.2), (3.3, 7.4)),
    "logsigmoid": ("kw_logsigmoid(x)", "(x > 0 ? 0 : x) - log1p(exp(-fabs(x)))", 0, (2.7, 6.7), (2, 4.4)),
    "logaddexp": ("kw_logaddexp(x, 1.0f)", "fmax(x, 1.0) + (fabs(x) > 100 ? 0 : log1p(exp(-fabs(x - 1))))", 0,
                  (1.3, 2.4), (1.1, 1.8)),
    "elu": ("kw_elu(x, 1.0f)", "x > 0 ? x : expm1(x)", 0, (0, 0), (1.5, 3.3)),
    "selu": ("kw_selu(x)", "x > 0 ? double(1.0507009873554805f) * x : 1.7580993408473766 * expm1(x)", 0, (1.1, 1.1),
             (2.8, 6.3)),
    "celu": ("kw_celu(x, 1.7f)", "x > 0 ? x : double(1.7f) * expm1(x / double(1.7f))", 0, (0, 0), (3.2, 6.3)),
    "softsign": ("kw_softsign(x)", "x / (1 + fabs(x))", 0, (2, 2), (2, 2)),
    "sqrt": ("kw_sqrt(x)", "sqrt(x)", 0, (0.5001, 0.5001), (0, 0)),
    "rsqrt": ("kw_rsqrt(x)", "1 / sqrt(x)", 0, (0.5001, 2.6), (0, 0)),
    "reciprocal": ("kw_divide(1.0f, x)", "1 / x", 0, (0.5001, 0.5001), (0.5001, 0.5001)),
    "3 / x": ("kw_divide(3.0f, x)", "3 / x", 0, (0.5001, 0.5001), (0.5001, 0.5001)),
    "x / 3": ("kw_divide(x, 3.0f)", "x / 3", 0, (0.5001, 0.5001), (0.5001, 0.5001)),
    # Behind rounded operands.
    "rounded sigmoid": ("kw_rounded_sigmoid(x)", "1 / (1 + exp(-x))", LEAST / 4, (1.6, 4.1), (58, 62)),
    "rounded silu": ("x * kw_rounded_sigmoid(x)", "x / (1 + exp(-x))", 23 * LEAST, (2.2, 6), (58, 62)),
    "rounded mish": ("kw_rounded_mish(x)", "x * tanh(log1p(exp(x)))", 128 * LEAST, (3, 7.6), (58, 64)),
    "rounded tanh": ("kw_rounded_tanh(x)", "tanh(x)", 0, (9, 23), (9, 23)),
    "rounded decay": ("kw_rounded_decay(-fabsf(x))", "exp(-fabs(x))", LEAST, (58, 62), (58, 62)),
    "rounded exp": ("kw_rounded_exp(x)", "exp(x)", LEAST, (62, 66), (58, 62)),
    "rounded gelu_tanh": ("kw_rounded_gelu_tanh(x)",
                          "x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))", 0, (2.2, 6.1), NONE),
}
EXACT, ABOVE, BELOW, EITHER = 0, 1, -1, 2


def bits_of(x: float) -> int:
    return struct.unpack("I", struct.pack("f", x))[0]


def functions(more: str) -> str:
    """The functions and their true values, and ``more`` of each: NUMBER and LEAST stand for what they say."""
    text = scalar_snippets(snippets_of(" ".join(call for call, *_ in FUNCTIONS.values()))) + HARNESS
    for number, (call, true, least, *_) in enumerate(FUNCTIONS.values()):
        text += f"static __device__ float kw_test_function{number}(float x) {{ return {call}; }}\n" \
                f"static __device__ double kw_test_exact{number}(double x) {{ return {true}; }}\n" \
                + more.replace("NUMBER", str(number)).replace("LEAST", repr(least))
    return text


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compile_emulated(MEASURE + functions("""
extern "C" void measureNUMBER(int way, unsigned first, unsigned step, unsigned count, double* worst, unsigned* where) {
  kw_test_way = way;
  *worst = 0.0, *where = 0;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned bits = first + i * step;
    float x;
    memcpy(&x, &bits, 4);
    const double error = kw_test_error(kw_test_functionNUMBER(x), kw_test_exactNUMBER(x), LEAST);
    if (!(error <= *worst)) *worst = error, *where = bits;
  }
}
extern "C" void applyNUMBER(const float* x, float* y, int count) {
  kw_test_way = 0;
  for (int i = 0; i < count; ++i) y[i] = kw_test_functionNUMBER(x[i]);
}
"""))


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


#: At 80 an exponent that is rounded once is half a unit of 2^-17 off.
ROUNDED = 2.0**-18
REFERENCES = {
    "erf": torch.erf, "sigmoid": torch.sigmoid, "silu": F.silu, "mish": F.mish, "softplus": F.softplus,
    "logsigmoid": F.logsigmoid, "elu": F.elu, "selu": F.selu, "celu": lambda x: F.celu(x, 1.7), "softsign": F.softsign,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "x / 3": lambda x: x / 3, "3 / x": lambda x: 3 / x,
    "rounded sigmoid": torch.sigmoid, "rounded silu": F.silu, "rounded mish": F.mish,
    "rounded decay": lambda x: torch.exp(-x.abs()), "rounded tanh": torch.tanh,
    "rounded gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "rounded exp": torch.exp,
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
    rounded = name.startswith("rounded")
    near = torch.isclose(y, wanted, rtol=ROUNDED if rounded else 3e-7, atol=128 * LEAST if rounded else 2.0**-149,
                         equal_nan=True)
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


@pytest.mark.parametrize(("name", "least"), [("silu", -88.7), ("mish", -91.5)])
def test_tails_vanish_no_sooner_than_those_of_pytorch(library, name: str, least: float) -> None:
    """Their exponentials, or the inverses of those, are below 2^-126 before the results are."""
    x = torch.linspace(least, -80.0, 10001)
    wanted = REFERENCES[name](x)
    assert (wanted.abs() >= LEAST).all()
    assert torch.allclose(applied(library, name, x), wanted, rtol=1e-4, atol=0.0)
    assert (applied(library, name, torch.tensor([-150.0, -1e30])) == 0).all()


@pytest.mark.parametrize("alpha", [1.7, -1.0, -0.25])
def test_celu_grows_below_zero_for_a_negative_alpha(alpha: float) -> None:
    library = compile_emulated(scalar_snippets(["kw_celu"]) + f"""
extern "C" void apply(const float* x, float* y, int count) {{
  for (int i = 0; i < count; ++i) y[i] = kw_celu(x[i], float({alpha}));
}}
""")
    x = torch.tensor([0.0, 0.3, 7.0, -0.1, -0.3, -1.0, -5.0, -20.0, -1e4, -math.inf, math.nan])
    y = torch.empty_like(x)
    library.apply(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), len(x))
    assert torch.allclose(y, F.celu(x.double(), alpha).float(), rtol=1e-5, atol=0.0, equal_nan=True)


@pytest.fixture(scope="module")
def divide():
    library = compile_emulated(MEASURE + scalar_snippets(["kw_divide"]) + """
extern "C" void quotients(int way, const float* x, const float* y, float* q, int count) {
  kw_test_way = way;
  for (int i = 0; i < count; ++i) q[i] = kw_divide(x[i], y[i]);
}
""")

    def quotients(way: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y, q = x.contiguous(), y.contiguous(), torch.empty(len(x))
        library.quotients(way, *(ctypes.c_void_p(t.data_ptr()) for t in (x, y, q)), len(x))
        return q

    return quotients


def same_floats(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())


def dividends_and_divisors(kind: str, count: int = 1 << 19) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def floats(last: int) -> torch.Tensor:
        return torch.randint(0, last, (count,), generator=generator).to(torch.int32).view(torch.float32)

    sizes = 1 + torch.randint(0, 2**23 - 1, (count,), generator=generator) * 2.0**-23
    match kind:
        case "any":
            return floats(2**31 - 1), -floats(2**31 - 1)
        case "tiny dividends":
            return floats(bits_of(2.0**-90)), floats(2**31 - 1)
        case "tiny":
            return floats(bits_of(2.0**-100)), floats(bits_of(2.0**-100))
        case "near the greatest float":
            powers = torch.randint(-60, 1, (count,), generator=generator)
            near = sizes + torch.randint(-2, 3, (count,), generator=generator) * 2.0**-23
            return torch.ldexp(near.double(), 128 + powers).float(), torch.ldexp(sizes, powers)
        case _:
            return 1 + torch.rand(count, generator=generator), sizes


@pytest.mark.parametrize("kind", ["any", "tiny dividends", "tiny", "near the greatest float", "between 1 and 2"])
def test_quotients_are_rounded_as_by_a_division(divide, kind: str) -> None:
    """Wherever the quotient is at least 2^-126, and where it is infinite or NaN; below, a unit may be missing."""
    x, y = dividends_and_divisors(kind)
    wanted = x / y
    for way in (EXACT, ABOVE, BELOW, EITHER):
        q = divide(way, x, y)
        wrong = ~same_floats(q, wanted) & ~(wanted.abs() < LEAST)
        assert not wrong.any(), (x[wrong], y[wrong], q[wrong], wanted[wrong])
        assert torch.allclose(q, wanted, rtol=2.0**-22, atol=2.0**-149, equal_nan=True)


def test_quotients_of_special_values(divide) -> None:
    most = torch.finfo(torch.float32).max
    x = torch.tensor([0.0, math.inf, math.nan, 2.0**-149, 3 * 2.0**-149, 2.0**-127, LEAST, 1.5 * LEAST, 2.0**-103,
                      2.0**-96, 2.0**-64, 1e-30, 0.75, 1.0, 3.0, 2.0**32, 2.0**96, 2.0**126, 1.7 * 2.0**126,
                      0.75 * most, most])
    x, y = (part.reshape(-1) for part in torch.meshgrid(torch.cat([x, -x]), torch.cat([x, -x]), indexing="ij"))
    wrong = ~same_floats(divide(EXACT, x, y), x / y)
    assert not wrong.any(), (x[wrong], y[wrong])


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
        defined = set(re.findall(r"(?:float|double|T|void|short|unsigned|bool|struct|alignas[^{]*) (kw_\w+)\b", text))
        assert set(re.findall(r"\bkw_\w+", text)) <= defined, name


ON_A_DEVICE = """
static __global__ void kw_test_kernelNUMBER(unsigned first, unsigned count, unsigned long long* worst) {
  double most = 0.0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float x = __uint_as_float(first + i);
    most = fmax(most, kw_test_error(kw_test_functionNUMBER(x), kw_test_exactNUMBER(x), LEAST));
  }
  atomicMax(worst, (unsigned long long)__double_as_longlong(most));
}
extern "C" double measureNUMBER(unsigned first, unsigned count) {
  unsigned long long* worst;
  double result = INFINITY;
  if (cudaMalloc(&worst, 8) != cudaSuccess) return result;
  cudaMemset(worst, 0, 8);
  kw_test_kernelNUMBER<<<2112, 256>>>(first, count, worst);
  cudaMemcpy(&result, worst, 8, cudaMemcpyDeviceToHost);
  cudaFree(worst);
  return cudaGetLastError() == cudaSuccess ? result : INFINITY;
}
"""


@pytest.mark.skipif(find_cuda_compiler() is None, reason="nvcc is not there")
def test_what_a_device_measures_compiles() -> None:
    assert compile_cuda("#include <cuda_runtime.h>\n" + functions(ON_A_DEVICE)) == ""


@pytest.mark.skipif(find_cuda_compiler() is None, reason="nvcc is not there")
def test_steps_neither_branch_nor_call(tmp_path) -> None:
    """Nor divide or take roots by the instructions that stand for calls."""
    text = functions("""
extern "C" __global__ void kernelNUMBER(float* x) { x[threadIdx.x] = kw_test_functionNUMBER(x[threadIdx.x]); }
""")
    (tmp_path / "all.cu").write_text(text)
    subprocess.run([find_cuda_compiler(), "-std=c++17", "-arch=compute_90a", "-ptx", "all.cu"], cwd=tmp_path,
                   check=True, capture_output=True)
    code = (tmp_path / "all.ptx").read_text()
    assert code.count(".entry") == len(FUNCTIONS)
    assert re.findall(r"\b(?:bra|call|div\.rn\.f32|rcp\.rn\.f32|sqrt\.rn\.f32)\b", code) == []


@on_hopper
def test_errors_on_a_device(tmp_path) -> None:
    """Of every float, with the approximations as the device makes them."""
    (tmp_path / "all.cu").write_text("#include <cuda_runtime.h>\n" + functions(ON_A_DEVICE))
    subprocess.run([find_cuda_compiler(), "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared",
                    "-Xcompiler", "-fPIC", "-o", "all.so", "all.cu"], cwd=tmp_path, check=True, capture_output=True)
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    found = {}
    for number, name in enumerate(FUNCTIONS):
        measure = getattr(library, f"measure{number}")
        measure.restype = ctypes.c_double
        found[name] = [measure(ctypes.c_uint(first), ctypes.c_uint(0x7f800001)) for first in (0, 0x80000000)]
        print(f"{name}: {found[name][0]:.2f} units from zero on, {found[name][1]:.2f} below")
    assert all(error <= bounds[1] for name, (*_, above, below) in FUNCTIONS.items()
               for error, bounds in zip(found[name], (above, below), strict=True)), found
