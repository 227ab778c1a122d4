"""Epilogue reduce_channels through subtiles, around a plain core: against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL
from dataclasses import replace
from math import inf, nan, prod

import pytest
import torch
import torch.nn.functional as F
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import Source, build, check_thread_order, run, source, unit
from gemm_epilogues import channels_last, normed, softmax
from gemm_matrix import same_where_not_finite

from kernelwright.build.module import compile_cuda, find_cuda_compiler
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels import ReduceChannels
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue, subtile_columns
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction, sums_of_products
from kernelwright.plan.contraction.products import MOST_REDUCED

TILING = Tiling("wgmma", rows=64, columns=32, depth=16, stages=2)


IMAGE = convolution(3, 1, 5, 20, (7, 9), (3, 3), padding=1)
CASES = [softmax(IMAGE), normed(convolution(2, 2, 9, 13, (7, 6), (3, 3), stride=2, padding=1, transposed=True)),
         softmax(matmul(70, 30, 32)), normed(convolution(2, 1, 8, 3, (5, 5), (2, 2), scheme="native", dtype="float16")),
         normed(matmul(33, 20, 1)), softmax(matmul(66, 20, 160)),
         channels_last(normed(convolution(2, 2, 9, 13, (5, 6), (3, 3), stride=2, padding=1, transposed=True)))]


def tiling_of(case: ContractionCase) -> Tiling:
    """A tiling with all channels."""
    return replace(TILING, columns=max(TILING.columns, -(-case.kernel.out_channels // 8) * 8))


@pytest.fixture(scope="module")
def built():
    return {case.name: one for case, one in zip(CASES, build([(c.kernel, tiling_of(c)) for c in CASES]), strict=True)}


def check(case: ContractionCase, inputs: list[torch.Tensor], built: Mapping[str, tuple[CDLL, Source]]) -> None:
    """Outputs against float64, as near as the sums are."""
    expected = evaluate_contraction(case.kernel, inputs)
    for found, right in zip(run(*built[case.name], inputs)[0], expected, strict=True):
        finite = same_where_not_finite(found, right)
        scale = right[finite].abs() + (right[finite].square().mean().sqrt() if finite.any() else 0)
        assert bool(((found.double() - right)[finite].abs() <= 1e-5 * scale).all())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reductions_are_those_of_float64(case, built):
    check(case, case.inputs(), built)


@pytest.mark.parametrize("order", ["reverse", "12345"])
def test_no_order_of_threads_changes_a_bit(order, built):
    check_thread_order(order, CASES, [built[case.name] for case in CASES])


@pytest.mark.parametrize("number", [0, 1, 2, 6])
def test_nan_and_inf_stay_in_their_rows(number, built):
    case = CASES[number]
    inputs = case.inputs()
    inputs[0].view(-1)[1], inputs[0].view(-1)[-1] = nan, inf
    check(case, inputs, built)


@pytest.mark.parametrize("number", [0, 2])
def test_unusual_scales(number, built):
    case = CASES[number]
    inputs = case.inputs()
    inputs[0] *= 1e-30
    inputs[1] *= 1e30
    check(case, inputs, built)


def test_the_evaluator_agrees_with_pytorch():
    case = CASES[0]
    x, w, bias = case.inputs()
    sums = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    probabilities, greatest = case.expected([x, w, bias])
    torch.testing.assert_close(probabilities.reshape(sums.shape), sums.softmax(1))
    torch.testing.assert_close(greatest, sums.amax(1).flatten())
    assert sums_of_products(case.kernel, [x, w, bias]).numel() == prod(case.kernel.domain)


def test_channels_that_no_subtile_holds_are_refused():
    with pytest.raises(ValueError, match="subtiles"):
        epilogue(Geometry(softmax(matmul(70, 30, 33)).kernel, TILING), "k")


@pytest.mark.skipif(find_cuda_compiler() is None, reason="no nvcc")
def test_nvcc_accepts_the_text():
    wide = replace(TILING, rows=128, columns=128)
    chosen = [softmax(convolution(8, 1, 32, 96, (64, 64), (3, 3), padding=1)), normed(matmul(4096, 64, 128)),
              channels_last(softmax(convolution(8, 1, 32, 96, (64, 64), (3, 3), padding=1)))]
    assert compile_cuda(unit([source(Geometry(c.kernel, wide), f"k{n}") for n, c in enumerate(chosen)])) == ""


@pytest.mark.parametrize("core", ["wgmma", "mma"])
def test_tilings_hold_all_channels(core):
    kernel = softmax(convolution(2, 1, 16, 72, (20, 20), (3, 3))).kernel
    found = tilings(kernel, core)
    assert found and all(subtile_columns(kernel, tiling) >= 72 for tiling in found)
    assert not tilings(softmax(matmul(300, 64, 300)).kernel, core)
    assert MOST_REDUCED < 300 and tilings(softmax(matmul(300, 64, MOST_REDUCED, scheme="fp16")).kernel, core)


def test_two_lanes_have_all_channels_of_a_row():
    """An odd number, too: of 9, 25 or 41 each of them took half of one less."""
    for count in range(1, 65):
        case = softmax(convolution(2, 1, 9, count, (5, 7), (1, 1)))
        made = ReduceChannels(Geometry(case.kernel, replace(TILING, columns=-(-count // 8) * 8)), "k")
        assert count <= 2 * made.channels_of_lane and made.channels_of_lane <= count
