"""Core swap_ab: matrix products whose weight consumers read as it lies, into registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, matmul, with_epilogue
from contraction_tools import run
from gemm_epilogues import normed, softmax
from gemm_matrix import Matrix, built

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.swap_ab.problem import SwapAB
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.plan.describe import tiling_words

TILING = SwapAB.tiling_of
LINEAR = matmul(70, 200, 140, transposed=(False, True))


def as_it_lies(case: ContractionCase) -> ContractionCase:
    """The case with an epilogue, and nothing done to x as it is read."""
    kernel = with_epilogue(case).kernel
    return replace(with_epilogue(case), kernel=replace(kernel, left=kernel.left.arguments[0]))


CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (LINEAR, TILING(64, 128, 2)), (with_epilogue(LINEAR), TILING(128, 128, 3)),
    # Few positions, four warpgroups; channels that end within a step, at an odd number of them, and one alone.
    (with_epilogue(matmul(5, 300, 270, transposed=(False, True))), TILING(64, 256, 4)),
    (with_epilogue(matmul(20, 77, 64, transposed=(False, True))), TILING(64, 64, 2)),
    (matmul(1, 1, 1, transposed=(False, True)), TILING(64, 64, 2)),
    # Output channels are neighbours in memory; several products; x the other way round.
    (with_epilogue(matmul(130, 130, 200)), TILING(128, 128, 2)),
    (with_epilogue(matmul(66, 64, 72, groups=3, transposed=(True, True))), TILING(64, 128, 2)),
    (matmul(9, 150, 33, groups=2), TILING(64, 64, 3)),
    # 11 bits; parts of the steps, of some with scales that leave what is usual.
    (with_epilogue(matmul(40, 128, 128, transposed=(False, True), scheme="fp16")), TILING(64, 128, 2)),
    (with_epilogue(matmul(30, 500, 130, transposed=(False, True))), TILING(64, 128, 2, split=3)),
    (matmul(200, 640, 190, groups=2), TILING(128, 64, 2, split=10)),
    (matmul(9, 900, 130), TILING(64, 128, 2, split=5)),
    # x as it lies, too: positions that end within a warp's, channels within a step; channels or positions neighbours;
    # several products, few positions, 11 bits.
    (as_it_lies(matmul(130, 500, 130, transposed=(False, True))), TILING(128, 128, 2, 3, converts_left=True)),
    (matmul(128, 640, 190), TILING(128, 64, 2, 5, converts_left=True)),
    (as_it_lies(matmul(68, 300, 72, groups=3, transposed=(True, False))), TILING(128, 128, 2, 2, converts_left=True)),
    (matmul(12, 905, 130, transposed=(True, True)), TILING(64, 128, 3, 4, converts_left=True)),
    (as_it_lies(matmul(30, 516, 130, transposed=(False, True), scheme="fp16")),
     TILING(64, 128, 2, 9, converts_left=True)),
    # Reductions over all output channels.
    (softmax(matmul(50, 100, 120, transposed=(False, True))), TILING(64, 128, 2)),
    (normed(matmul(90, 260, 64)), TILING(64, 64, 2, split=2)),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7", "2026")


@pytest.mark.parametrize("number", [1, 5, 10])
def test_steps_have_scales_of_their_own(number, libraries):
    """As accurate as float32 where w goes over 18 orders of magnitude, and no sum is computed again."""
    case, tiling = CHECKED[number]
    inputs = case.inputs()
    inputs[1] *= torch.logspace(-9, 9, inputs[1].numel()).reshape(inputs[1].shape)
    outputs, workspace = run(*libraries[number], inputs)[:2]
    at, size = SwapAB(case.kernel, tiling).places["right_scales"]
    assert (workspace[at:at + size].view(torch.float32) == 1).all()
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)
    for mine, usual, expected in zip(outputs, plain, case.expected(inputs), strict=True):
        scale = expected.square().mean().sqrt()
        error, single = (((x.double() - expected).square().mean().sqrt() / scale) for x in (mine, usual))
        assert error <= 4 * single


@pytest.mark.parametrize("number", [0, 7, 9, 10])
def test_what_float16_terms_cannot_hold(number, libraries):
    """Output channels of w that are not finite, that are tiny or huge, or zero; all others stay as they were."""
    case, _ = CHECKED[number]
    kernel, inputs = case.kernel, case.inputs()
    usual = run(*libraries[number], inputs)[0][0]
    by_channels = kernel.right.index.strides[2] == 1
    w = inputs[1].reshape(kernel.groups, -1, kernel.in_channels) if by_channels else \
        inputs[1].reshape(kernel.groups, kernel.in_channels, -1).mT
    w[0, 3, 40], w[0, 5, 2], w[0, 7, kernel.in_channels - 1] = torch.inf, torch.nan, -torch.inf
    w[0, 11] *= 1e-40
    w[0, 12] *= 1e35
    w[0, 14] = 0
    found, expected = run(*libraries[number], inputs)[0][0], case.expected(inputs)[0]
    plain = evaluate_contraction(kernel, inputs, torch.float32)[0]
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not torch.equal(usual.isfinite(), expected.float().isfinite())
    changed = torch.ones(kernel.out_channels, dtype=torch.bool)
    changed[[3, 5, 7, 11, 12, 14]] = False
    others = [x.reshape(kernel.groups, -1, kernel.out_channels)[..., changed] for x in (found, usual)]
    assert torch.equal(*others)


CONVERTED = [number for number, (_, tiling) in enumerate(CHECKED) if tiling.converts_left and tiling.rows == 128]


def rows_of_x(case: ContractionCase, x: torch.Tensor) -> torch.Tensor:
    """x as (groups, rows, channels)."""
    kernel = case.kernel
    if kernel.left.index.strides[2] == 1:
        return x.reshape(kernel.groups, -1, kernel.in_channels)
    return x.reshape(kernel.groups, kernel.in_channels, -1).mT


@pytest.mark.parametrize("number", CONVERTED)
def test_rows_of_x_have_scales_of_their_own(number, libraries):
    """As accurate as float32, row by row, where rows and steps of x differ by 18 orders of magnitude."""
    case, tiling = CHECKED[number]
    inputs = case.inputs()
    rows = rows_of_x(case, inputs[0])
    rows *= torch.logspace(-6, 6, rows.shape[1])[:, None]
    rows *= torch.logspace(-3, 3, rows.shape[2])
    outputs, workspace = run(*libraries[number], inputs)[:2]
    at, size = SwapAB(case.kernel, tiling).places["left_scales"]
    assert (workspace[at:at + size].view(torch.float32) == 1).all()
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)
    for mine, usual, expected in zip(outputs, plain, case.expected(inputs), strict=True):
        every = [y.double().reshape(case.kernel.groups, rows.shape[1], -1) for y in (mine, usual, expected)]
        scale = every[2].square().mean(-1).sqrt()
        error, single = (((y - every[2]).square().mean(-1).sqrt() / scale) for y in every[:2])
        assert (error <= 6 * single.mean() + 6 * single).all()


@pytest.mark.parametrize("number", CONVERTED)
def test_what_float16_terms_cannot_hold_of_x(number, libraries):
    """Rows of x that are not finite, that are tiny or huge, or zero; all others stay as they were."""
    case, _ = CHECKED[number]
    kernel, inputs = case.kernel, case.inputs()
    usual = run(*libraries[number], inputs)[0][0]
    x = rows_of_x(case, inputs[0])
    x[0, 3, 40], x[0, 5, 2], x[0, 7, kernel.in_channels - 1] = torch.inf, torch.nan, -torch.inf
    x[0, 11] *= 1e-40
    x[0, 12] *= 1e35
    x[0, 14] = 0
    found = run(*libraries[number], inputs)[0][0]
    plain = evaluate_contraction(kernel, inputs, torch.float32)[0]
    for y in (found, plain):  # sums of the huge row may cancel
        y.reshape(kernel.groups, kernel.batch, -1)[0, 12] *= 1e-35
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not found.isfinite().all()
    changed = torch.ones(kernel.batch, dtype=torch.bool)
    changed[[3, 5, 7, 11, 12, 14]] = False
    others = [y.reshape(kernel.groups, kernel.batch, -1)[:, changed] for y in (found, usual)]
    assert torch.equal(*others)


@pytest.mark.parametrize(("case", "tiling"), [
    (convolution(2, 1, 8, 8, (9,), (3,)), TILING(64, 64, 2)),          # a window
    (matmul(70, 70, 140, scheme="native", dtype="float16"), TILING(64, 64, 2)),
    (LINEAR, replace(TILING(64, 128, 2), depth=32)), (LINEAR, replace(TILING(64, 128, 2), converts_right=False)),
    (LINEAR, TILING(64, 192, 2)), (LINEAR, TILING(128, 256, 2)),       # of three warpgroups; too many registers
    (LINEAR, TILING(128, 128, 12)), (LINEAR, TILING(64, 128, 2, split=5)), (LINEAR, TILING(256, 128, 2)),
    (LINEAR, replace(TILING(64, 128, 2), cluster=2)), (LINEAR, TILING(128, 128, 2, converts_left=True)),
    # x that copies cannot bring: through a function, in channels or positions that are no fours, in 16 bits.
    (with_epilogue(LINEAR), TILING(128, 128, 2, 2, converts_left=True)),
    (matmul(70, 202, 140), TILING(128, 128, 2, 2, converts_left=True)),
    (matmul(70, 200, 140, transposed=(True, True)), TILING(128, 128, 2, 2, converts_left=True)),
    (matmul(70, 200, 140, scheme="fp16", dtype="float16"), TILING(128, 128, 2, 2, converts_left=True))])
def test_tilings_that_cannot_be_are_refused(case, tiling):
    with pytest.raises(ValueError):
        generate(replace(case.kernel, tiling=tiling), "refused")


def test_few_rows_and_a_large_weight_come_first():
    for rows, depth, columns in ((128, 32768, 32768), (128, 16384, 16384), (16, 4096, 4096), (10, 4096, 1000)):
        best = tilings(matmul(rows, depth, columns, transposed=(False, True)).kernel, "wgmma")[0]
        assert best.core == "swap_ab"
    assert tilings(matmul(4096, 4096, 4096).kernel, "wgmma")[0].core == "wgmma"


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_few_tiles_of_many_steps_pack_nothing_at_first(transposed):
    best = tilings(matmul(256, 100000, 256, transposed=transposed).kernel, "wgmma")[0]
    assert best.core == "swap_ab" and best.converts_left and best.split_k > 1
    others = tilings(matmul(254, 100002, 256, transposed=transposed).kernel, "wgmma")  # no fours to copy
    assert others and not any(tiling.converts_left for tiling in others)


def test_words_say_what_is_unusual():
    words = tiling_words(TILING(64, 128, 4, split=3))
    assert words.startswith("swap_ab 64x128x64: tiles of 64 rows by 128 channels, 64 input channels a step; output")
    assert "3 blocks share the steps" in words and "made ready by each block" not in words
