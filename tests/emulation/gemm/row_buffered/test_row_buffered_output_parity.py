"""Core row_buffered of transposed convolutions, whose rows are output parities as well."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import convolution, with_epilogue
from contraction_tools import compiled, generated, run
from gemm_epilogues import every
from gemm_matrix import Matrix, built, check_sums
from test_row_buffered import proposed, tiling

from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import suits
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds


def transposed(*shape, **options):
    """A transposed convolution, of stride 2 where no other is asked for."""
    return convolution(*shape, **{"stride": 2, "transposed": True, **options})


FOURS = transposed(2, 1, 5, 12, (5, 10), (4, 4), padding=1)  # 10 x 20
THREES = transposed(2, 1, 24, 36, (6, 10), (3, 3), padding=1, output_padding=1, scheme="fp16")
FEW = transposed(3, 1, 8, 7, (4, 18), (2, 2))
ODD = transposed(2, 1, 3, 20, (5, 6), (3, 4), padding=(0, 1))  # 11 lines of 12
WIDE = transposed(1, 1, 9, 16, (3, 70), (5, 6), padding=2)
LINES = transposed(2, 1, 8, 20, (5, 12), (4, 3), stride=(2, 1), padding=1)
POSITIONS = transposed(2, 1, 8, 33, (5, 8), (3, 4), stride=(1, 2), padding=1)
VOLUME = transposed(1, 1, 4, 8, (3, 4, 6), (2, 4, 4), stride=(1, 2, 2), padding=(0, 1, 1))
SPARSE = transposed(2, 1, 8, 8, (5, 6), (1, 1), output_padding=1)  # phases without taps
LONG = transposed(1, 1, 32, 32, (4, 300), (4, 4), padding=1, scheme="fp16")  # no room for whole lines
CASES = [(with_epilogue(FOURS), tiling(FOURS, columns=16)), (with_epilogue(THREES), tiling(THREES, 16, 3, columns=16)),
         (FEW, tiling(FEW, 24, 1, columns=8, slots=9)), (with_epilogue(ODD), tiling(ODD, columns=16)),
         (with_epilogue(WIDE), tiling(WIDE, 40, columns=16)), (with_epilogue(LINES), tiling(LINES, columns=32)),
         (with_epilogue(POSITIONS), tiling(POSITIONS, columns=32)), (VOLUME, tiling(VOLUME, columns=8, slots=12)),
         (POSITIONS, tiling(POSITIONS, 8, 3, columns=16)), (every(LINES), tiling(LINES, columns=16, slots=9)),
         (SPARSE, tiling(SPARSE, columns=16)), (LONG, tiling(LONG, 104, columns=16, slots=4))]

libraries = built(CASES)


class TestMatrix(Matrix):
    entries = CASES
    check = staticmethod(check_sums)  # of totals as well
    orders = ("reverse", "7")


@pytest.mark.parametrize(("name", "number"), [("fp16", 0), ("fp16x3", 1)])
def test_what_is_not_finite_comes_out_as_it_would(name, number):
    """Sums that meet Inf or NaN are computed again from the operands themselves, those of no other channel or image."""
    case = with_epilogue(transposed(2, 1, 8, 20, (5, 6), (3, 4), padding=1, output_padding=(1, 0), scheme=name))
    inputs = case.inputs()
    inputs[0][1, 3, 4, 5], inputs[1][2, 7, 1, 1] = torch.inf, torch.nan
    inputs[0][0] *= 1e-30
    ((library, source),) = compiled([generated(case.kernel, tiling(case, columns=16), f"k{number}")])
    (mine,), (expected,) = run(library, source, inputs)[0], case.expected(inputs)
    assert torch.equal(mine.isnan(), expected.isnan()) and torch.equal(mine.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert (mine.double() - expected)[finite].abs().max() <= 2.0**-7 * expected[finite].abs().max()


SHAPES = {"few": (transposed(64, 1, 16, 32, (64, 64), (4, 4), padding=1), 16, 2),
          "many": (transposed(128, 1, 64, 64, (128, 128), (3, 3), padding=1, output_padding=1, scheme="fp16"), 16, 4),
          "fewest": (transposed(64, 1, 16, 3, (64, 64), (4, 4), padding=1), 8, 3)}


@pytest.mark.parametrize("name", SHAPES)
def test_tilings_are_proposed_first_and_fit(name):
    case, columns, warpgroups = SHAPES[name]
    found = proposed(case.kernel)
    assert found[0].columns == columns and found[0].pingpong == warpgroups
    for each in found:
        numbers = RowBuffered(case.kernel, each)
        assert numbers.shared_bytes <= 227 * 1024 and numbers.segments * each.rows * 2 >= numbers.positions.out_size
        assert numbers.stacked * each.columns * 2 == 64 and predicted_milliseconds(case.kernel, each) > 0


def test_every_entry_of_the_window_is_met_once():
    for case, each in CASES:
        numbers = RowBuffered(case.kernel, each)
        met: dict[tuple[int, int], list[int]] = {}
        for product in numbers.products:
            for chunk, entries in product.halves:
                for place, entry in enumerate(entries):
                    if entry is not None and chunk == 0:
                        met.setdefault((place // numbers.interleaved % numbers.line_axis.out_stride,
                                        place % numbers.interleaved), []).append(entry)
        every_entry = sorted(entry for entries in met.values() for entry in set(entries))
        axes = case.kernel.axes
        taps = 1
        for axis in axes:
            taps *= len(axis.taps)
        assert len(every_entry) == taps == len(set(every_entry))


@needs_nvcc
def test_the_first_tilings_compile_without_trouble(tmp_path):
    kernels = [with_epilogue(case).kernel for case, *_ in SHAPES.values()]
    check_compiles([replace(k, tiling=proposed(k)[0]) for k in kernels], "90a", tmp_path, spilled=48)


@pytest.mark.parametrize("case", [
    transposed(2, 1, 8, 8, (5, 5), (4, 4), padding=1, output_padding=(0, 1)), transposed(2, 1, 8, 8, (5, 5), (2, 2)),
    transposed(2, 1, 8, 8, (5, 8), (3, 3), stride=3), every(FOURS),
    transposed(2, 1, 8, 8, (3, 4, 6), (4, 4, 4), padding=1)])
def test_what_cannot_be_row_buffered_is_not(case):
    """Lines of no whole fours, strides of 3, totals beside phases, phases of planes."""
    assert not suits(case.kernel) and not proposed(case.kernel)
