"""Epilogue reduce_channels of the core sm90 where tiles have both output parities."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, few_channel_cases, two_phase_cases
from contraction_tools import run
from gemm_epilogues import alone, chained, channels_last, normed, placed, softmax
from gemm_matrix import GuessedScales, Matrix, built, check, one_in
from torch.nn import functional

from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds, tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling

BOTH = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2, parities=2)
PINGPONG = Tiling("wgmma", rows=128, columns=64, depth=32, stages=2, pingpong=2, parities=2)
ONCE = replace(BOTH, promote=0)
TWO_TAPS = replace(BOTH, columns=40, depth=8, stages=4)


TWO = two_phase_cases()
ROUND = two_phase_cases("fp16")
FEW = few_channel_cases()
MANY = convolution(2, 1, 24, 100, (7, 9), (3, 3), stride=2, padding=1, transposed=True)
WIDE = convolution(1, 1, 24, 128, (6, 70), (4, 4), stride=2, padding=1, output_padding=1, transposed=True,
                   scheme="fp16")

CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((softmax(TWO[number]), tiling) for number, tiling in (
        (0, BOTH), (1, PINGPONG), (2, BOTH), (3, BOTH), (4, PINGPONG), (5, replace(BOTH, columns=8)),
        (6, replace(BOTH, columns=40, depth=64, stages=4, promote=1)), (7, replace(BOTH, columns=8)), (8, BOTH),
        (9, replace(PINGPONG, rows=64, cluster=2, promote=1)))),
    *((normed(TWO[number]), tiling) for number, tiling in (
        (0, PINGPONG), (2, replace(BOTH, rows=128, cluster=2)), (3, BOTH), (4, BOTH), (6, PINGPONG), (7, BOTH))),
    *((chained(TWO[number]), BOTH) for number in (1, 4, 7)),
    *((placed(TWO[number]), BOTH) for number in (2, 4)),
    (placed(TWO[6]), replace(BOTH, columns=40)),
    *((alone(TWO[number], kind), BOTH) for number, kind in (
        (0, "sum"), (1, "max"), (4, "min"), (2, "logsumexp"), (7, "moments"))),
    (normed(MANY), replace(BOTH, columns=112, promote=0)),
    (softmax(MANY), replace(BOTH, columns=128, stages=2, promote=0)),
    (softmax(WIDE), Tiling("wgmma", 64, 128, 16, 2, pingpong=2, parities=2)),
    (normed(TWO[0]), replace(BOTH, rows=256, columns=24, promote=0)),
    (softmax(ROUND[2]), replace(ONCE, columns=16, pingpong=3)),
    # A product takes two taps of at most 8 channels.
    (softmax(FEW[7]), TWO_TAPS), (normed(FEW[8]), TWO_TAPS), (chained(FEW[9]), TWO_TAPS), (placed(FEW[11]), TWO_TAPS),
    (softmax(ROUND[0]), ONCE), (normed(ROUND[4]), ONCE), (alone(ROUND[6], "logsumexp"), replace(ONCE, columns=40)),
    *((softmax(two_phase_cases("native", dtype)[number]), ONCE) for number, dtype in (
        (0, "float16"), (4, "bfloat16"))),
    (normed(two_phase_cases("native", "bfloat16")[2]), replace(ONCE, pingpong=2)),
    (chained(convolution(2, 1, 8, 16, (7, 6), (4, 4), stride=2, padding=1, transposed=True, scheme="native",
                         dtype="float16")), replace(TWO_TAPS, promote=0)),
]
SCALED = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme != "native"]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7", "2026")
    in_orders = one_in(3)
    not_finite = SCALED
    of_magnitudes = [n for n in SCALED if CHECKED[n][0].kernel.scheme == "fp16x3"][::3]
    magnitudes = ((1e-30, 1e30), (1e34, 1e-34), (1e25, 1e-30))
    side_by_side = [0, 2, 10, 16]


class TestGuessedScales(GuessedScales):
    entries = [(alone(convolution(2, 1, 24, 9, (20, 20), (4, 4), stride=2, padding=1, transposed=True), "min"), BOTH)]
    bound = 2.0**-20


@pytest.mark.parametrize("number", [0, 3, 12, 18, 24])
def test_the_check_would_find_a_wrong_position(number):
    case = CHECKED[number][0]
    expected = case.expected(case.inputs())
    check(case, [right.to(getattr(torch, dtype)) for right, dtype in
                 zip(expected, case.kernel.output_dtypes, strict=True)])
    for number in range(len(expected)):
        moved = [right.roll(1) if number == n else right for n, right in enumerate(expected)]
        with pytest.raises(AssertionError):
            check(case, moved)


def test_agrees_with_pytorch(libraries):
    """Sizes that are odd along one axis and even along the other."""
    case = CHECKED[4][0]
    x, w, bias = case.inputs()
    sums = functional.conv_transpose2d(x.double(), w.double(), bias.double().repeat(2), 2, 1, groups=2)
    found = run(*libraries[4], [x, w, bias])[0]
    by_group = sums.unflatten(1, (2, -1))
    assert sums.shape[2] % 2 == sums.shape[3] % 2 == 1
    torch.testing.assert_close(found[0].double().reshape(by_group.shape), by_group.softmax(2), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1].double().reshape(by_group.amax(2).shape), by_group.amax(2), rtol=1e-5,
                               atol=1e-5)


def test_accesses_to_a_subtile_meet_no_bank_conflict():
    """Both phases of an element are written together, by half a warp at a time; a warp reads 32 neighbours."""
    for case, tiling in CHECKED:
        made = epilogue(Geometry(case.kernel, tiling), "k")
        places = [lane // 4 * made.row_stride + lane % 4 * 2 * made.column_stride for lane in range(16)]
        assert made.row_stride == 2 and len({place % 32 // 2 for place in places}) == 16
        assert made.floats == tiling.columns * made.column_stride and made.columns == tiling.columns
        assert made.column_stride % 2 == 0 and made.column_stride >= 128
        assert "row_sums = sums + thread;" in made.definitions and "__shfl" not in made.definitions


@pytest.mark.parametrize("case", [channels_last(softmax(TWO[0])), softmax(convolution(2, 1, 9, 12, (9,), (3,)))],
                         ids=lambda case: case.name)
def test_what_has_no_such_tiles_is_refused(case):
    """Channels that are neighbours in the output; no two phases."""
    with pytest.raises(ValueError, match="no tiles"):
        generate(replace(case.kernel, tiling=BOTH), "k")
    found = tilings(case.kernel, "wgmma")
    assert found and all(tiling.parities == 1 for tiling in found)


PLANE = {"stride": 2, "padding": 1, "output_padding": 1, "transposed": True}
VOLUME = {**PLANE, "size": (16, 32, 32), "window": (3, 3, 3)}


@pytest.mark.parametrize("case", [
    *(softmax(case) for case in TWO), normed(ROUND[6]), chained(FEW[7]), placed(TWO[4]), alone(TWO[0], "logsumexp"),
    *(softmax(convolution(16, 1, 32, 64, **VOLUME, scheme=scheme)) for scheme in ("fp16", "fp16x3")),
    alone(convolution(128, 1, 3, 16, **VOLUME, scheme="fp16x3"), "logsumexp"),
    softmax(convolution(128, 1, 64, 128, (64, 64), (4, 4), **PLANE, scheme="fp16"))], ids=lambda case: case.name)
def test_both_kinds_of_tiles_are_proposed(case):
    found = tilings(case.kernel, "wgmma")
    assert [t.parities for t in found[:6]].count(2) >= 5 and [t.parities for t in found].count(1) >= 1
    assert len(set(found)) == len(found) <= 8
    for tiling in found:
        generate(replace(case.kernel, tiling=tiling), "k")
        assert predicted_milliseconds(case.kernel, tiling) > 0
    assert not any(t.parities == 2 for t in tilings(case.kernel, "mma"))


def test_two_output_parities_of_128_channels_need_more_registers_than_there_are():
    """In fp16x3, whose sums are added up in registers of their own: 256, and those of addresses."""
    case = softmax(convolution(128, 1, 64, 128, (64, 64), (4, 4), **PLANE, scheme="fp16x3"))
    found = tilings(case.kernel, "wgmma")
    assert found and all(tiling.parities == 1 for tiling in found)
    with pytest.raises(ValueError, match="takes"):
        Layout(Geometry(case.kernel, Tiling("wgmma", 64, 128, 16, 2, promote=2, parities=2)), 0)


@needs_nvcc
def test_they_compile_without_spills_or_serialised_products(tmp_path):
    chosen = [softmax(convolution(128, 1, 64, 128, (64, 64), (4, 4), **PLANE, scheme="fp16")),
              softmax(convolution(16, 1, 32, 64, **VOLUME, scheme="fp16x3")),
              normed(convolution(16, 1, 32, 64, **VOLUME, scheme="fp16")),
              alone(convolution(128, 1, 3, 16, **VOLUME, scheme="fp16x3"), "logsumexp"),
              chained(convolution(16, 1, 32, 64, (128, 128), (3, 3), **PLANE, scheme="native", dtype="bfloat16"))]
    kernels = [replace(case.kernel, tiling=next(t for t in tilings(case.kernel, "wgmma") if t.parities == 2))
               for case in chosen]
    check_compiles(kernels, "90a", tmp_path)
