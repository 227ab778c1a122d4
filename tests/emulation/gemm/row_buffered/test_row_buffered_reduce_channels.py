"""Core row_buffered, epilogue reduce_channels."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution
from contraction_tools import run
from gemm_epilogues import BIASED, call, reducing, softmax
from gemm_matrix import Matrix, built, check
from test_row_buffered import proposed, tiling

from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import suits
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds
from kernelwright.plan.expressions import Constant, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction


def folded(case: ContractionCase, *kinds: str) -> ContractionCase:
    """Reductions of biased sums, and of each something that is stored; of the first what is added of each position."""
    stores = [(False, call("tanh", call("mul", Reduced(n), Constant(0.25)))) for n in range(1, len(kinds) + 1)]
    made = reducing(case, tuple(Reduction(kind, BIASED) for kind in kinds), tuple(stores))
    (first, *others), domain = made.kernel.stores, made.kernel.domain
    own = Load(3, Index((*[0] * (len(domain) - 2), domain[-1], 1)))  # of each position of a plane
    shifted = replace(first, expression=call("add", first.expression, own))
    kernel = replace(made.kernel, stores=(shifted, *others), input_dtypes=(*made.kernel.input_dtypes, "float32"))
    return replace(made, kernel=kernel, shapes=(*made.shapes, tuple(domain[-2:])))


FEW = convolution(3, 1, 5, 20, (7, 10), (3, 3), padding=1)
IMAGE = convolution(2, 1, 8, 64, (9, 30), (3, 3))
MANY = convolution(2, 1, 16, 130, (6, 18), (2, 3), padding=(0, 1), scheme="fp16")
VOLUME = convolution(2, 1, 3, 16, (5, 7, 12), (3, 3, 3))
STRIDED = convolution(2, 1, 9, 12, (12, 13), (3, 4), stride=(2, 1))
LONG = convolution(1, 1, 64, 128, (5, 500), (3, 3), padding=1, scheme="fp16")  # no room for whole lines
CASES = [(folded(FEW, "min"), tiling(FEW)), (folded(FEW, "logsumexp"), tiling(FEW, warpgroups=3, columns=32)),
         (folded(IMAGE, "logsumexp"), tiling(IMAGE, 32, 3)), (folded(IMAGE, "max", "sum"), tiling(IMAGE, 64, 1)),
         (folded(MANY, "min"), tiling(MANY, 24)), (folded(MANY, "logsumexp"), tiling(MANY, 16, 3)),
         (folded(VOLUME, "max"), tiling(VOLUME, 16, 2, 9, columns=16)), (folded(VOLUME, "sum"), tiling(VOLUME)),
         (folded(STRIDED, "sum", "min"), tiling(STRIDED, 16, columns=16, slots=12)),
         (folded(LONG, "min"), tiling(LONG, 96, slots=4)), (folded(IMAGE, "sum"), tiling(IMAGE, 136, 2))]

libraries = built(CASES)


class TestMatrix(Matrix):
    entries = CASES
    orders = ("reverse", "7")
    not_finite = [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("value", [-inf, inf, 1e30, -1e30])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_biases_that_mask_channels(value, number, libraries):
    """A log-sum-exp of which some channels, or all but one, or all, are -inf; or one is greater than all."""
    case = CASES[number][0]
    for masked in ((1,), range(1, case.kernel.out_channels), range(case.kernel.out_channels)):
        inputs = case.inputs()
        inputs[2][list(masked)] = value
        check(case, run(*libraries[number], inputs)[0], inputs)


def test_scales_of_any_size_come_through(libraries):
    """Images of magnitudes that no float16 holds, beside each other."""
    case = CASES[0][0]
    inputs = case.inputs()
    inputs[0] *= torch.tensor([1e-30, 1.0, 1e30]).reshape(3, 1, 1, 1)
    check(case, run(*libraries[0], inputs)[0], inputs)


SHAPES = {"fewest": (folded(convolution(128, 1, 8, 16, (128, 128), (3, 3)), "min"), 16),
          "few": (folded(convolution(128, 1, 16, 64, (256, 256), (3, 3)), "min"), 64),
          "pairs": (folded(convolution(128, 1, 8, 64, (128, 128), (3, 3)), "logsumexp"), 64),
          "many": (folded(convolution(64, 1, 64, 128, (256, 256), (3, 3), scheme="fp16"), "min"), 64)}


@pytest.mark.parametrize("name", SHAPES)
def test_tilings_are_proposed_first_and_fit(name):
    case, columns = SHAPES[name]
    found = proposed(case.kernel)
    assert len(found) > 1 and found[0].columns == columns
    for each in found:
        numbers = RowBuffered(case.kernel, each)
        assert numbers.shared_bytes <= 227 * 1024 and numbers.line_work_tiles == numbers.segments // numbers.across
        assert predicted_milliseconds(case.kernel, each) > 0


@needs_nvcc
def test_the_first_tilings_compile_without_trouble(tmp_path):
    kernels = [case.kernel for case, _ in SHAPES.values()]
    check_compiles([replace(k, tiling=t) for k in kernels for t in proposed(k)[:2]], "90a", tmp_path, spilled=48)


@pytest.mark.parametrize("case", [
    softmax(IMAGE), reducing(IMAGE, (Reduction("moments", BIASED),), ((False, Reduced(1, 1)),)),
    reducing(IMAGE, (Reduction("max", BIASED), Reduction("sum", call("sub", BIASED, Reduced(1)))),
             ((False, Reduced(2)),)),
    folded(IMAGE, "logsumexp", "max"), folded(convolution(2, 1, 8, 257, (9, 30), (3, 3)), "min")])
def test_what_needs_channels_again_or_much_of_them_is_not_row_buffered(case):
    assert not suits(case.kernel) and not proposed(case.kernel)
