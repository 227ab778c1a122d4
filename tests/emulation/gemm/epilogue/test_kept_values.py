"""Epilogue reduce_channels: what stays in a subtile between passes over channels, and quotients, against NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from contraction_cases import convolution, two_phase_cases
from gemm_epilogues import BIASED, call, normed, reducing, softmax

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.gemm.epilogue.kept_values import SUM, kept, put, reads
from kernelwright.codegen.cuda.gemm.epilogue.quotients import quotient_functions
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Constant, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction

TILING = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
POWER = call("exp", call("sub", BIASED, Reduced(1)))


def test_the_largest_part_stays_through_which_all_read():
    assert kept(BIASED, [POWER, call("div", POWER, Reduced(2))], 1) == BIASED
    assert kept(POWER, [call("div", POWER, Reduced(2))]) == POWER
    assert kept(POWER, [call("add", POWER, BIASED)], 1) == BIASED
    assert kept(POWER, [call("add", POWER, SUM)], 1) is None
    assert kept(call("tanh", POWER), [call("add", POWER, call("mul", POWER, Reduced(2)))]) == POWER


def test_what_nobody_reads_or_is_as_soon_computed_does_not_stay():
    assert kept(POWER, []) is None and kept(POWER, [Reduced(1)]) is None
    assert kept(BIASED, [POWER]) is None
    assert kept(call("gt", SUM, Constant(0.0)), [SUM], 1) is None


def test_expressions_read_what_stayed():
    assert put(call("div", POWER, Reduced(2)), POWER) == call("div", SUM, Reduced(2))
    assert reads(POWER) and not reads(Reduced(1)) and not reads(Load(0, Index((1,))))


@pytest.mark.parametrize(("scheme", "writes"), [("fp16x3", 2), ("native", 1)])
def test_a_softmax_writes_sums_and_exponentials(scheme, writes):
    """Sums with their bias where they are scaled anyway, exponentials in any case: there is one in the text."""
    dtype = "float16" if scheme == "native" else "float32"
    for tiling in (TILING, Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, parities=2)):
        text = epilogue(Geometry(softmax(two_phase_cases(scheme, dtype)[0]).kernel, tiling), "k").definitions
        finish = text[text.index("k_finish("):]
        power = "kw_exp(" if scheme == "fp16x3" else "kw_rounded_exp("
        assert finish.count(power) == 1 and finish.count("k_quotient(") == 1 and " / r2" not in finish
        written = [line for line in finish.split("\n") if line.strip().startswith("row_sums[")]
        assert sum("rescaled" not in line for line in written) == writes


def test_sums_that_are_read_once_are_not_written():
    case = reducing(convolution(2, 1, 16, 24, (9,), (3,)), (Reduction("min", Reduced(0)),), ((False, Reduced(1)),))
    text = epilogue(Geometry(case.kernel, TILING), "k").definitions
    assert not any(line.strip().startswith("row_sums[") and "rescaled" not in line for line in text.split("\n"))
    text = epilogue(Geometry(normed(case).kernel, TILING), "k").definitions
    assert "k_divisor" not in text and text.count("_part[4] = ") == 5


@pytest.fixture(scope="module")
def quotient():
    text = "\n".join(quotient_functions("k")) + """
extern "C" void quotients(const float* a, const float* d, float* q, int count) {
  for (int i = 0; i < count; ++i) q[i] = k_quotient(a[i], k_divisor_of(d[i]));
}
"""
    library = compile_emulated(text)

    def divide(a: np.ndarray, d: np.ndarray) -> np.ndarray:
        found = np.empty_like(a)
        pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, d, found)]
        library.quotients(*pointers, ctypes.c_int(len(a)))
        return found

    return divide


def test_quotients_are_those_of_a_division(quotient):
    """The same bits wherever numerator and quotient are usual numbers, whatever the divisor is."""
    random = np.random.default_rng(1)
    size = 200000
    a, d = (np.ldexp(random.uniform(1, 2, size), random.integers(-100, 100, size)).astype(np.float32)
            * random.choice([-1, 1], size).astype(np.float32) for _ in range(2))
    d[:1000] = np.ldexp(d[:1000], -49) * np.float32(2.0**-49)
    with np.errstate(all="ignore"):
        right = a / d
        usual = (np.abs(right) > 2.0**-100) & (np.abs(right) < 2.0**126)
        assert usual.sum() > size / 2
        assert np.array_equal(quotient(a, d)[usual], right[usual])
    unit = random.uniform(0, 1, size).astype(np.float32)
    many = random.uniform(1, 256, size).astype(np.float32)
    assert np.array_equal(quotient(unit, many), unit / many)


def test_rare_quotients(quotient):
    rare = [0.0, 1.0, -3.0, 1e-45, -1e-40, 1.2e-38, 3e38, -3.4e38, 1e-20, 2e19, 2e20, np.inf, -np.inf, np.nan]
    a, d = (x.astype(np.float32).ravel() for x in np.meshgrid(rare, rare))
    with np.errstate(all="ignore"):
        right, found = a / d, quotient(a, d)
    finite = np.isfinite(right)
    assert np.array_equal(found[~finite], right[~finite], equal_nan=True)
    assert np.all(np.abs(found[finite] - right[finite]) <= 2.0**-22 * np.abs(right[finite]) + 2.0**-149)
