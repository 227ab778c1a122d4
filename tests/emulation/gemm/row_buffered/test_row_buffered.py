"""Core row_buffered: row-buffered implicit GEMM. Stores, reductions over positions and pools, against float64."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import compiled, generated, guessed_scales, run, wrong_scales
from gemm_epilogues import every, lined, moments, pooled, with_much
from gemm_matrix import Matrix, built, check_sums

from kernelwright.codegen.cuda.gemm.generate import generate, tilings
from kernelwright.codegen.cuda.gemm.row_buffered.operation import compensation
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import suits
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.describe import tiling_words
from kernelwright.plan.expressions import Index


def tiling(case: ContractionCase, rows: int = 16, warpgroups: int = 2, slots: int = 8, columns: int = 64) -> Tiling:
    """A tiling of strips for the case."""
    depth = 8 if case.kernel.in_channels <= 8 else 16
    return Tiling("row_buffered", rows, columns, depth, slots, pingpong=warpgroups, converts_left=True)


FEW = convolution(3, 1, 5, 20, (7, 10), (3, 3), padding=1)
IMAGE = convolution(2, 1, 8, 64, (9, 20), (3, 3))
MANY = convolution(2, 1, 24, 70, (6, 18), (3, 3), padding=(0, 1))
STRIDED = convolution(2, 1, 9, 12, (11, 12), (3, 3), stride=(2, 1))
APART = convolution(1, 1, 4, 8, (12, 26), (2, 4), dilation=(3, 2), padding=(2, 0))
VOLUME = convolution(2, 1, 3, 16, (5, 6, 12), (3, 3, 3))
PADDED = convolution(1, 1, 12, 10, (4, 5, 6), (3, 3, 3), padding=1, stride=(2, 1, 1))
ROUNDED = convolution(2, 1, 16, 66, (6, 40), (3, 3), scheme="fp16")
WIDE = convolution(1, 1, 2, 3, (4, 140), (1, 5), padding=(0, 2))
LONG = convolution(1, 1, 64, 128, (5, 500), (3, 3), padding=1, scheme="fp16")  # no room for whole lines
CASES = [(with_epilogue(FEW), tiling(FEW)), (with_epilogue(IMAGE), tiling(IMAGE, 24, 3)),
         (with_epilogue(MANY), tiling(MANY)), (STRIDED, tiling(STRIDED, warpgroups=1)),
         (with_epilogue(APART), tiling(APART)),
         (with_epilogue(VOLUME), tiling(VOLUME)), (PADDED, tiling(PADDED, 8)), (ROUNDED, tiling(ROUNDED, 32)),
         (with_epilogue(WIDE), tiling(WIDE, 64)), (every(FEW), tiling(FEW)),
         (every(LONG), tiling(LONG, 96, slots=4)),  (every(IMAGE), tiling(IMAGE)),
         (every(VOLUME, ordinary=False), tiling(VOLUME)), (moments(MANY), tiling(MANY))]
# Items of several lines and fewer channels; lines that are no multiple of them.
CASES += [(with_epilogue(FEW), tiling(FEW, columns=32)), (with_epilogue(FEW), tiling(FEW, columns=16, slots=9)),
          (STRIDED, tiling(STRIDED, warpgroups=1, columns=16, slots=12)), (PADDED, tiling(PADDED, 8, columns=32)),
          (with_epilogue(IMAGE), tiling(IMAGE, 24, columns=32)), (ROUNDED, tiling(ROUNDED, 32, 3, columns=32)),
          (with_epilogue(APART), tiling(APART, columns=16, slots=12)), (every(FEW), tiling(FEW, columns=32)),
          (every(VOLUME), tiling(VOLUME, columns=16, slots=9)), (moments(FEW), tiling(FEW, columns=16, slots=9))]


def much(case: ContractionCase, size: int) -> ContractionCase:
    """`with_much`, all of whose stores lie along lines, in float32."""
    made = with_much(case, size)
    stores = tuple(replace(store, index=made.kernel.stores[0].index) for store in made.kernel.stores)
    return replace(made, kernel=replace(made.kernel, stores=stores, output_dtypes=("float32",) * 3))


# Windows that move by two positions, of even and odd sizes.
EVEN = convolution(2, 1, 5, 64, (9, 24), (3, 4), stride=2, padding=1)
FIVES = convolution(1, 1, 24, 36, (8, 44), (2, 5), stride=(1, 2), padding=(0, 2))
POINTS = convolution(2, 1, 16, 16, (6, 20), (1, 1), stride=2, scheme="fp16")
CUT = convolution(1, 1, 64, 64, (7, 700), (3, 3), stride=2, padding=1, scheme="fp16")  # no room for whole lines
CASES += [(with_epilogue(EVEN), tiling(EVEN)), (with_epilogue(FIVES), tiling(FIVES, 24, 3)),
          (POINTS, tiling(POINTS, columns=16, slots=9)), (every(EVEN), tiling(EVEN, 8, 3)),
          (with_epilogue(CUT), tiling(CUT, 64, slots=5)), (every(POINTS), tiling(POINTS, columns=32, warpgroups=1))]
POOLS = [(pooled(case, size, kind), tiling(case, rows, warpgroups)) for case, size, kind, rows, warpgroups in (
    (FEW, 2, "max", 16, 2), (lined(FEW), 2, "min", 16, 1), (lined(IMAGE), 4, "sum", 24, 2), (WIDE, 8, "max", 64, 2),
    (lined(convolution(2, 1, 8, 66, (10, 35), (3, 3))), 2, "max", 40, 2))]
POOLS += [(much(case, size), tiling(case, rows, warpgroups)) for case, size, rows, warpgroups in (
    (IMAGE, 2, 16, 3), (lined(MANY), 2, 24, 2), (lined(ROUNDED), 4, 32, 2), (IMAGE, 8, 8, 2), (VOLUME, 2, 8, 1))]
SKIPPING = lined(convolution(2, 1, 9, 12, (11, 13), (3, 3), stride=(2, 1)))
POOLS.append((much(SKIPPING, 4), tiling(SKIPPING, 16, slots=12)))
POOLS += [(pooled(FEW, 2, "max"), tiling(FEW, columns=32)), (much(VOLUME, 4), tiling(VOLUME, 8, columns=16, slots=9))]


CHECKED = [*CASES, *POOLS]
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    check = staticmethod(check_sums)  # of totals as well
    orders = ("reverse",)


def proposed(kernel: Contraction) -> list[Tiling]:
    """The tilings that are row-buffered."""
    return [t for t in tilings(kernel, "wgmma") if t.core == "row_buffered"]


SHAPES = {
    "few": convolution(128, 1, 8, 64, (128, 128), (3, 3)),
    "wide": convolution(128, 1, 8, 64, (256, 256), (3, 3)),
    "many": convolution(128, 1, 64, 128, (128, 128), (3, 3), scheme="fp16"),
    "both": convolution(64, 1, 64, 128, (256, 256), (3, 3), scheme="fp16"),  # whole lines do not fit
    "twos": convolution(64, 1, 32, 64, (128, 128), (3, 3), stride=2, padding=1, scheme="fp16"),
    "volume": convolution(16, 1, 8, 64, (16, 64, 64), (3, 3, 3)),
}


@needs_nvcc
def test_the_first_tilings_compile_without_trouble(tmp_path):
    kernels = [with_epilogue(case).kernel for case in SHAPES.values()]
    kernels += [moments(SHAPES["few"]).kernel, moments(SHAPES["many"]).kernel, pooled(lined(SHAPES["many"]), 2).kernel]
    check_compiles([replace(k, tiling=proposed(k)[0]) for k in kernels], "90a", tmp_path, spilled=48)


@pytest.mark.parametrize("name", SHAPES)
def test_tilings_are_proposed_first_and_fit(name):
    kernel = SHAPES[name].kernel
    found = proposed(kernel)
    assert tilings(kernel, "wgmma")[0] == found[0] and len(found) > 1
    for tiling in found:
        numbers = RowBuffered(kernel, tiling)
        assert numbers.shared_bytes <= 227 * 1024 and numbers.strips >= 128
        assert numbers.segments * tiling.rows >= numbers.positions.out_size
        assert predicted_milliseconds(kernel, tiling) > 0
    assert (RowBuffered(kernel, found[0]).across > 1) == (name == "both")


def test_strips_keep_multiprocessors_busy():
    """Few images are cut into strips, and of each strip every consumer warpgroup has an work tile."""
    case = convolution(8, 1, 8, 64, (128, 128), (3, 3))
    numbers = RowBuffered(case.kernel, proposed(case.kernel)[0])
    waves = -(-numbers.strips // 132)
    assert numbers.strips / (132 * waves) > 0.9 and numbers.strip_lines >= numbers.tiling.pingpong
    assert numbers.partial_results * 8 * numbers.channel_blocks == numbers.strips * numbers.tiling.pingpong


def test_long_images_are_planned_at_once():
    """Of ten million lines, or four thousand million, not every number of strips is tried."""
    kernel = convolution(1, 1, 8, 64, (10**7, 10), (3, 3)).kernel
    assert 100 <= RowBuffered(kernel, proposed(kernel)[0]).strips <= 16 * 132
    with pytest.raises(ValueError, match="no strips that"):
        RowBuffered(convolution(2**30, 1, 8, 64, (10, 1000, 10), (1, 3, 3)).kernel, proposed(kernel)[0])


def test_a_consumer_warpgroup_of_several_windows_has_all_their_lines_at_once():
    """Two work tiles of a line for each consumer warpgroup: a ring of four lines would wait for what the second of them
    is to finish, whose windows begin at the first of five lines."""
    case = pooled(lined(convolution(1, 1, 2, 100, (6, 35), (2, 3), stride=(3, 1), padding=(0, 2))), 8)
    with pytest.raises(ValueError, match="no strips whose ring"):
        generate(replace(case.kernel, tiling=tiling(case, 24, 2, 4)), "k")
    (built,) = compiled([generated(case.kernel, tiling(case, 24, 2, 5), "k0")])
    check_sums(case, run(*built, case.inputs())[0])


LEFT = convolution(2, 1, 8, 12, (9, 10), (3, 3))


@pytest.mark.parametrize("kernel", [
    convolution(2, 2, 8, 12, (9, 10), (3, 3)).kernel, convolution(2, 1, 8, 12, (9, 11), (3, 3)).kernel,  # groups, odd
    convolution(2, 1, 8, 12, (9, 11), (3, 3), stride=2).kernel, convolution(2, 1, 8, 12, (20,), (3,)).kernel,
    convolution(2, 1, 8, 12, (9, 14), (3, 3), stride=3).kernel,
    convolution(2, 1, 8, 12, (9, 10), (4, 4), stride=2, transposed=True).kernel,
    convolution(2, 1, 8, 12, (9, 10), (3, 3), scheme="native", dtype="float16").kernel,
    pooled(convolution(2, 1, 8, 12, (9, 20), (3, 3)), 3).kernel,
    pooled(convolution(2, 1, 8, 12, (9, 40), (3, 3)), 16).kernel,
    replace(LEFT.kernel, output_dtypes=("float16",)), convolution(0, 1, 8, 12, (9, 10), (3, 3)).kernel,
    pooled(convolution(2, 1, 8, 12, (9, 8), (3, 3)), 8).kernel,
    convolution(2, 1, 8, 0, (9, 10), (3, 3)).kernel, convolution(2, 1, 0, 12, (9, 10), (3, 3)).kernel,
    replace(LEFT.kernel, stores=(replace(LEFT.kernel.stores[0], index=Index((672, 0, 1, 96, 12))),))])
def test_what_cannot_be_row_buffered_is_not(kernel):
    assert not suits(kernel) and (not prod(kernel.pooled_domain) or not proposed(kernel))
    if prod(kernel.pooled_domain):
        with pytest.raises(ValueError, match=r"no (strips|pairs)"):
            generate(replace(kernel, tiling=tiling(LEFT)), "k")


@pytest.mark.parametrize("change", [
    {"columns": 128}, {"columns": 8}, {"depth": 16}, {"stages": 3}, {"stages": 40}, {"converts_left": False},
    {"promote": 1}, {"pingpong": 8}, {"pingpong": 0}])
def test_blocks_that_do_not_fit_are_refused(change):
    with pytest.raises(ValueError, match=r"no (strips|tiles)"):
        generate(replace(LEFT.kernel, tiling=replace(tiling(LEFT), **change)), "k")


@pytest.mark.parametrize(("name", "number"), [("fp16", 0), ("fp16x3", 1)])
def test_what_is_not_finite_comes_out_as_it_would(name, number):
    """Sums that meet Inf or NaN are computed again from the operands themselves, those of no other channel or image."""
    case = with_epilogue(convolution(2, 1, 8, 20, (7, 10), (3, 3), scheme=name))
    inputs = case.inputs()
    inputs[0][1, 3, 4, 5], inputs[1][7, 2, 1, 1] = torch.inf, torch.nan
    ((library, source),) = compiled([generated(case.kernel, tiling(case), f"k{number}")])
    (mine,), (expected,) = run(library, source, inputs)[0], case.expected(inputs)
    assert torch.equal(mine.isnan(), expected.isnan()) and torch.equal(mine.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert (mine.double() - expected)[finite].abs().max() <= 2.0**-7 * expected[finite].abs().max()


def test_scales_of_any_size_come_through():
    """Images and channels of magnitudes that no float16 holds, beside each other."""
    case = convolution(3, 1, 8, 20, (7, 10), (3, 3))
    x, w = case.inputs()
    x *= torch.tensor([1e-30, 1.0, 1e30]).reshape(3, 1, 1, 1)
    w *= torch.logspace(-6, 6, 20).reshape(20, 1, 1, 1)
    (built,) = compiled([generated(case.kernel, tiling(case), "k0")])
    (mine,), (expected,) = run(*built, [x, w])[0], case.expected([x, w])
    mine, expected = (t.reshape(3, 20, -1).double() for t in (mine, expected))
    assert ((mine - expected).abs() <= 1e-5 * expected.abs().amax(dim=2, keepdim=True)).all()


def test_guesses_that_were_wrong_are_mended():
    """The part of x that was looked at has small values alone: the core runs again."""
    case = convolution(3, 1, 8, 12, (9, 20), (3, 3))
    with guessed_scales():
        one = generated(case.kernel, tiling(case), "k0")
    x, w = case.inputs()
    (built,) = compiled([one])
    usual = run(*built, [x, w])
    assert wrong_scales(one, usual[1]) == 0
    x[1, 5] *= 1e9
    x[2] = 0
    x[2, 7, 8, 19] = 3.0
    (mine,), (expected,) = run(*built, [x, w])[0], case.expected([x, w])
    mine, expected = (t.reshape(3, -1).double() for t in (mine, expected))
    assert ((mine - expected).abs() <= 1e-5 * expected.abs().amax(dim=1, keepdim=True)).all()


def test_words():
    assert tiling_words(tiling(IMAGE, 24, 3)).startswith(
        "row_buffered 24x64: row-buffered implicit GEMM: weights stay in shared memory beside")
    words = tiling_words(tiling(IMAGE, 24, columns=16))
    assert "24 positions of a line by 16 channels, each at 4 neighbouring lines or phases, one line after" in words


def test_few_channels_are_stacked():
    """Lines of few channels fill products together, with fewer products for each line of the output."""
    for channels, columns in ((1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 32), (96, 32), (97, 64)):
        found = proposed(convolution(64, 1, 8, channels, (128, 128), (3, 3)).kernel)
        assert found[0].columns == columns and found[0].pingpong == 2 + (channels < 97), channels
        assert any(tiling.columns == 64 for tiling in found)
    kernel = SHAPES["few"].kernel
    alone, stacked = (RowBuffered(replace(kernel, out_channels=32), tiling(SHAPES["few"], 128, columns=columns))
                      for columns in (64, 32))
    assert len(alone.products) == 6 and len(stacked.products) == 8 and stacked.lines == alone.lines / 2
    assert [half for half, _ in stacked.products[0].halves] == [0, 0]
    assert [entries for _, entries in stacked.products[0].halves] == [(0, None), (1, None)]
    assert [entries for _, entries in stacked.products[2].halves] == [(3, 0), (4, 1)]
    # Six of the eight have something of a line: what they cut off is made up for, not what zeros did not.
    assert 0 < compensation(stacked) == compensation(alone)
