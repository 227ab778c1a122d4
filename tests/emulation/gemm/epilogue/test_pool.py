"""Epilogue pool through subtiles, of the cores sm90 and sm80: against float64; compiled; refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, matmul, two_phase_cases
from contraction_tools import run
from gemm_epilogues import call, channels_last, lined, of_lines, pooled, softmax, with_much
from gemm_matrix import GuessedScales, Matrix, bounds, built, name_of, one_in
from torch.nn import functional

from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue, holds, subtile_columns
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import suits
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds, tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Reduced
from kernelwright.plan.kernels import Reduction

WGMMA = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
PINGPONG = Tiling("wgmma", rows=128, columns=64, depth=32, stages=2, pingpong=2)
MMA = Tiling("mma", rows=64, columns=32, depth=16, stages=2, promote=1)
CONVERTED = Tiling("mma", rows=64, columns=128, depth=32, stages=3, promote=1, converts_right=True)
BOTH = replace(WGMMA, parities=2)


LINE = convolution(2, 1, 5, 12, (17,), (3,), padding=1)  # odd outputs
FITS = convolution(1, 2, 20, 40, (64,), (1,))  # whole windows alone, whatever their size
STRIDED = convolution(3, 2, 9, 10, (7, 19), (3, 3), stride=2, padding=1)
DILATED = convolution(2, 1, 16, 24, (11, 13), (3, 2), dilation=2)
VOLUME = convolution(1, 1, 20, 7, (4, 5, 6), (3, 3, 3), padding=1)
WIDE = convolution(2, 1, 8, 24, (5, 70), (3, 3), padding=1)
ONE = convolution(2, 1, 40, 70, (9, 9), (1, 1))
MANY = convolution(2, 1, 24, 100, (5, 11), (3, 3), padding=1)
LONG = convolution(1, 1, 9, 20, (300,), (3,))
PLANE = convolution(2, 1, 20, 24, (8, 12), (3, 3), padding=1)
ACROSS = convolution(2, 1, 9, 12, (6, 10), (4, 3), stride=(2, 1), padding=1, transposed=True)  # phases of lines
HIGH = convolution(1, 2, 9, 10, (21, 6), (5, 1), stride=3, padding=2)
TWO = two_phase_cases()

CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((pooled(case, size, kind), tiling) for case, size, kind, tiling in (
        (LINE, 2, "max", WGMMA), (FITS, 4, "min", WGMMA), (FITS, 8, "sum", MMA), (VOLUME, 2, "sum", MMA),
        (DILATED, 4, "max", PINGPONG), (LONG, 16, "max", WGMMA), (LONG, 32, "min", MMA), (LONG, 64, "max", WGMMA))),
    *((with_much(case, size), tiling) for case, size, tiling in (
        (LINE, 2, MMA), (LINE, 4, WGMMA), (LINE, 8, PINGPONG), (STRIDED, 2, WGMMA), (STRIDED, 4, MMA),
        (DILATED, 2, MMA),
        (DILATED, 4, WGMMA), (DILATED, 8, replace(WGMMA, cluster=2)), (VOLUME, 2, WGMMA), (VOLUME, 4, MMA),
        (WIDE, 2, replace(WGMMA, rows=128, pingpong=2)), (WIDE, 4, replace(WGMMA, stages=6, cluster=2)),
        (MANY, 2, replace(WGMMA, columns=192, stages=2)), (MANY, 2, replace(WGMMA, columns=24, promote=0)),
        (MANY, 4, replace(WGMMA, rows=256, columns=40, promote=0)), (MANY, 8, replace(WGMMA, columns=8, depth=64)),
        (MANY, 2, replace(MMA, rows=128, columns=128)), (ONE, 2, CONVERTED), (LONG, 16, MMA),
        (MANY, 2, replace(WGMMA, split_k=3)), (MANY, 4, replace(PINGPONG, split_k=2, cluster=2)))),
    # Both output phases of the last axis.
    *((pooled(case, size, kind), tiling) for case, size, kind, tiling in (
        (TWO[0], 2, "max", BOTH), (TWO[4], 4, "sum", BOTH), (TWO[7], 8, "min", BOTH), (TWO[7], 16, "max", BOTH))),
    *((with_much(TWO[number], size), tiling) for number, size, tiling in (
        (1, 2, replace(PINGPONG, parities=2)), (2, 4, BOTH), (3, 2, replace(BOTH, rows=128, cluster=2)), (4, 2, BOTH),
        (5, 2, replace(BOTH, columns=8)), (6, 2, replace(BOTH, columns=40)), (6, 8, replace(PINGPONG, parities=2)),
        (9, 4, BOTH))),
    *((with_much(convolution(2, 1, 8, 24, (5, 18), (3, 3), padding=1, scheme="fp16"), 2), t) for t in (WGMMA, MMA)),
    (with_much(convolution(2, 2, 9, 10, (7, 9), (3, 3), scheme="native", dtype="bfloat16"), 2),
     replace(WGMMA, promote=0)),
    (pooled(convolution(2, 1, 16, 24, (9, 12), (3, 3), scheme="native", dtype="float16"), 2), replace(MMA, promote=0)),
    (with_much(two_phase_cases("native", "bfloat16")[0], 2), replace(BOTH, promote=0)),
    # Two lines, which are two output phases of a tile.
    *((pooled(lined(case), size, kind), tiling) for case, size, kind, tiling in (
        (DILATED, 2, "max", BOTH), (VOLUME, 2, "sum", replace(PINGPONG, parities=2)), (WIDE, 8, "min", BOTH),
        (ONE, 4, "max", replace(BOTH, rows=128, cluster=2)), (PLANE, 2, "max", BOTH), (HIGH, 2, "max", BOTH))),
    (pooled(of_lines(ACROSS), 2), BOTH), (with_much(of_lines(ACROSS), 4), replace(PINGPONG, parities=2)),
    *((with_much(lined(case), size), tiling) for case, size, tiling in (
        (STRIDED, 2, BOTH), (DILATED, 4, replace(PINGPONG, parities=2)), (VOLUME, 2, BOTH), (PLANE, 4, BOTH),
        (MANY, 2, replace(BOTH, columns=24, depth=32, stages=2)), (MANY, 2, replace(BOTH, pingpong=3, columns=40)),
        (WIDE, 4, replace(BOTH, depth=8, converts_left=True)), (PLANE, 2, replace(BOTH, packs_concurrently=True)),
        (convolution(2, 1, 8, 24, (6, 18), (3, 3), padding=1, scheme="fp16"), 2, replace(BOTH, promote=0)),
        (convolution(2, 2, 9, 10, (7, 9), (3, 3), scheme="native", dtype="bfloat16"), 2, replace(BOTH, promote=0)))),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7", "2026")
    in_orders = one_in(3)
    not_finite = weight_not_finite = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme != "native"]
    of_magnitudes = [0, 1, 2, 4, 5, 29, 30, 31]
    magnitudes = ((1e-35, 1e30), (1e34, 1e-33), (1e25, 1e-40), (1e-42, 1e36), (1e18, 1e18))


class TestGuessedScales(GuessedScales):
    entries = [(pooled(convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1), 2), WGMMA),
               (pooled(convolution(2, 1, 24, 9, (20, 20), (4, 4), stride=2, transposed=True), 4), BOTH)]
    bound = 2.0**-20


def test_agrees_with_pytorchs_pools(libraries):
    case = CHECKED[4][0]
    x, w = case.inputs()
    expected = functional.max_pool2d(functional.conv2d(x.double(), w.double(), dilation=2), (1, 4))
    found = run(*libraries[4], [x, w])[0][0].reshape(expected.shape)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_lines_agree_with_pytorchs_pools(libraries):
    number = next(n for n, (c, _) in enumerate(CHECKED) if c.name == pooled(lined(PLANE), 2).name)
    x, w = CHECKED[number][0].inputs()
    expected = functional.max_pool2d(functional.conv2d(x.double(), w.double(), padding=1), 2)
    found = run(*libraries[number], [x, w])[0][0].reshape(expected.shape)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_images_of_any_magnitude_stand_side_by_side(libraries):
    """Rows whose scale is usual, and others, in one subtile."""
    for number in (0, 4, 29, 30):
        case = CHECKED[number][0]
        inputs = case.inputs()
        assert len(inputs[0]) > 1
        inputs[0][-1] *= 1e-30
        inputs[1][0] *= 1e30
        (found,), (expected,) = run(*libraries[number], inputs)[0], case.expected(inputs)
        assert ((found.double() - expected).abs() <= bounds(case.kernel, inputs)[0]).all()
        assert expected.abs().max() > 1e25


@pytest.mark.parametrize("case", [LINE, STRIDED, DILATED, VOLUME, LONG, TWO[0], TWO[4], TWO[9]], ids=lambda c: c.name)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_windows_lie_at_multiples_of_their_size(case, size):
    phases = case.kernel.axes[-1].out_stride
    tiling = replace(WGMMA, parities=phases)
    plain, kernel = Geometry(case.kernel, tiling), replace(pooled(case, size).kernel)
    geometry = Geometry(kernel, tiling)
    assert geometry.extents[:-1] == plain.extents[:-1]
    assert 0 <= geometry.extents[-1] - plain.extents[-1] < max(1, size // phases)
    assert all(pitch * phases % size == 0 for pitch in geometry.pitches[:-1])
    assert geometry.classes[0].counts == plain.classes[0].counts


@pytest.mark.parametrize("case", [PLANE, VOLUME, STRIDED, DILATED, HIGH], ids=lambda c: c.name)
def test_lines_share_their_rows(case):
    """Two lines are the phases of one class; what both read of x is brought once, and every product is formed once."""
    plain, kernel = Geometry(case.kernel, WGMMA), pooled(lined(case), 2).kernel
    geometry = Geometry(kernel, BOTH)
    (one,), (both,) = plain.classes, geometry.classes
    assert both.counts[-2] == -(-one.counts[-2] // 2) and both.counts[-1] == one.counts[-1]
    assert sum(len(run.taps) for run in both.runs) == 2 * sum(len(run.taps) for run in one.runs)
    assert {feed for run in both.runs for feed in run.feeds} == {0, 1}
    rows, alone = ({(run.phase, run.shift + beyond) for run in group.runs for beyond, _ in run.taps}
                   for group in (both, one))
    axis = case.kernel.axes[-2]
    offsets = {tap.offset for tap in axis.taps}
    assert (len(rows) < 2 * len(alone)) == any(offset + axis.in_stride in offsets for offset in offsets)
    assert kernel.multiply_adds == case.kernel.multiply_adds


@pytest.mark.parametrize(("case", "tiling"), CHECKED, ids=[name_of(*entry) for entry in CHECKED])
def test_subtiles_are_read_in_vectors(case, tiling):
    """Windows are aligned to as many floats as are read at a time, and all of a subtile's are there."""
    finish = epilogue(Geometry(case.kernel, tiling), "k")
    size, columns = case.kernel.pool_size * case.kernel.pool_lines, subtile_columns(case.kernel, tiling)
    assert finish.row_stride == tiling.parities and finish.column_stride % min(size, 4) == 0 and finish.floats % 4 == 0
    assert finish.floats >= (columns - 1) * finish.column_stride + 64 * tiling.parities
    lanes = [lane // 4 * finish.row_stride + lane % 4 * 2 * finish.column_stride for lane in range(32)]
    assert len({place % 32 // tiling.parities for place in lanes[:32 // tiling.parities]}) == 32 // tiling.parities


def test_threads_take_all_columns_once():
    """Parts of columns, read from the text: they cover a subtile, in multiples of the four that a table gives."""
    for case, tiling in CHECKED:
        columns = subtile_columns(case.kernel, tiling)
        text = epilogue(Geometry(case.kernel, tiling), "k").definitions
        found = re.search(r"first_column \+ thread(?: / (\d+))? \* (\d+);", text)
        across, part = int(found[1] or 1), int(found[2])
        assert across * case.kernel.pool_size * case.kernel.pool_lines == 64 * tiling.parities
        assert part % 4 == 0 and 128 // across * part >= columns
        assert (f"first_column + {columns})" in text) == (128 // across * part > columns)


OTHER = replace(pooled(LINE, 2).kernel.stores[0], expression=Reduced(0))
REFUSED: list[tuple[Contraction, dict, str]] = [
    (pooled(LINE, 3).kernel, {}, "pools of 3 among 64"), (pooled(LINE, 1).kernel, {}, "pools of 1 among 64"),
    (pooled(convolution(1, 1, 5, 8, (300,), (3,)), 128).kernel, {}, "pools of 128 among 64"),
    (replace(pooled(LINE, 2).kernel, stores=(*pooled(LINE, 2).kernel.stores, replace(OTHER, buffer=1)),
             output_dtypes=("float32",) * 2), {}, "stores of sums beside pools"),
    (replace(pooled(LINE, 2).kernel, stores=(replace(OTHER, expression=call("add", Reduced(0), Reduced(1))),)), {},
     "stores of sums beside pools"),
    (pooled(LINE, 2, "moments").kernel, {}, "pools other than sum, max, min"),
    (replace(pooled(LINE, 2).kernel, pools=(Reduction("max", Reduced(0)), Reduction("max", Reduced(1)))), {},
     "pools other than"),
    (replace(pooled(LINE, 2).kernel, position_reductions=(Reduction("max", Reduced(0)),)), {},
     "beside other reductions"),
    (replace(softmax(LINE).kernel, pools=(Reduction("max", Reduced(0)),), pool_size=2), {}, "beside other reductions"),
    (channels_last(pooled(STRIDED, 2)).kernel, {}, "channels are neighbours"),
    (pooled(matmul(20, 30, 40), 2).kernel, {}, "product without positions"),
    (pooled(TWO[0], 2).kernel, {}, "tiles of 1 of 2 output phases"),
    (pooled(TWO[0], 2).kernel, {"core": "mma", "promote": 1}, "tiles of 1 of 2 output phases"),
    (pooled(TWO[0], 3).kernel, {"parities": 2}, "pools of 3 among 128"),
    (pooled(LINE, 2).kernel, {"parities": 2}, "no tiles of 2 phases"),
    (pooled(convolution(2, 1, 5, 8, (9,), (3,), stride=3, transposed=True), 2).kernel, {},
     "tiles of 1 of 3 output phases"),
    (pooled(convolution(2, 1, 5, 8, (9,), (1,), stride=2, transposed=True), 2).kernel, {"parities": 2},
     "no tiles of 2 phases"),
    (pooled(lined(PLANE), 2).kernel, {}, "tiles of 1 of 2 output phases of the axis of lines"),
    (pooled(lined(PLANE), 2).kernel, {"core": "mma", "promote": 1}, "tiles of 1 of 2 output phases"),
    (pooled(lined(PLANE), 3).kernel, {"parities": 2}, "pools of 3 among 64"),
    (pooled(of_lines(TWO[4]), 2).kernel, {"parities": 2}, "pools of 2 lines of 2 output phases"),
    (pooled(of_lines(TWO[6], 2), 2).kernel, {"parities": 2}, "pools of 2 planes"),
]


@pytest.mark.parametrize(("kernel", "change", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_is_not_pooled_is_refused_in_words(kernel, change, words):
    with pytest.raises(ValueError, match=words):
        generate(replace(kernel, tiling=replace(WGMMA, **change)), "k")


@pytest.mark.parametrize("case", [lined(PLANE), lined(WIDE), of_lines(ACROSS), of_lines(TWO[4])],
                         ids=lambda case: case.name)
def test_two_lines_are_together_for_pools_alone(case):
    """What stores each sum takes the two phases of a tile for neighbours along the last axis."""
    kernel = case.kernel
    assert kernel.pool_lines == 2 and not kernel.pools
    for changed in (kernel, replace(kernel, position_reductions=(Reduction("sum", Reduced(0)),))):
        assert not holds(changed, BOTH) and holds(changed, WGMMA)
        with pytest.raises(ValueError, match="two lines in a tile without pools"):
            generate(replace(changed, tiling=BOTH), "k")
        assert {(t.core, t.parities) for t in tilings(changed, "wgmma")} == {("wgmma", 1)}
        assert not suits(changed)


@pytest.mark.parametrize("kernel", [pooled(LINE, 3).kernel, channels_last(pooled(STRIDED, 2)).kernel,
                                    pooled(convolution(2, 1, 5, 8, (9,), (3,), stride=3, transposed=True), 2).kernel])
def test_what_is_refused_is_not_proposed(kernel):
    assert tilings(kernel, "wgmma") == tilings(kernel, "mma") == []
    with pytest.raises(ValueError, match=r"no pools|no tiles|no tiling"):
        generate(kernel, "k")


@pytest.mark.parametrize("case", [pooled(LINE, 2), with_much(WIDE, 4), with_much(VOLUME, 2), with_much(TWO[0], 2),
                                  pooled(TWO[7], 8), pooled(channels_last(TWO[1]), 2),
                                  pooled(convolution(64, 1, 64, 128, (64, 64), (3, 3), padding=1, scheme="fp16"), 2),
                                  pooled(convolution(64, 1, 64, 64, (64, 64), (4, 4), stride=2, padding=1,
                                                     transposed=True), 2),
                                  *(pooled(lined(convolution(64, 1, channels, 128, (64, 64), (3, 3), padding=1,
                                                             scheme=scheme)), 2)
                                    for channels, scheme in ((64, "fp16"), (64, "fp16x3"), (8, "fp16x3"))),
                                  with_much(lined(VOLUME), 2)], ids=lambda c: c.name)
def test_tilings_are_proposed_that_pool(case):
    phases = case.kernel.axes[case.kernel.parity_axis].out_stride
    found = tilings(case.kernel, "wgmma")
    assert 1 <= len(set(found)) == len(found) <= 8 and {t.parities for t in found if t.core == "wgmma"} == {phases}
    portable = tilings(case.kernel, "mma")
    assert bool(portable) == (phases == 1)
    for tiling in [*found, *portable]:
        generate(replace(case.kernel, tiling=tiling), "k")
    assert all(predicted_milliseconds(case.kernel, tiling) > 0 for tiling in found)


def test_pools_write_less():
    """The guess for a kernel that is bound by its results is shorter where windows are stored."""
    case = convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1, scheme="fp16")
    tiling = Tiling("wgmma", rows=256, columns=64, depth=16, stages=4)
    assert predicted_milliseconds(pooled(case, 2).kernel, tiling) < 0.75 * predicted_milliseconds(case.kernel, tiling)


@pytest.mark.parametrize(("batch", "positions", "windows"), [(500, "", ""), (1500, "LL", ""), (2500, "LL", "LL")])
def test_offsets_beyond_31_bits_are_computed_in_64(batch, positions, windows):
    """Windows are fewer than positions: each counts with its own numbers."""
    case = with_much(convolution(batch, 1, 8, 32, (256, 256), (3, 3), padding=1), 2)
    text = epilogue(Geometry(case.kernel, WGMMA), "k").definitions
    assert f"in3[n * 2097152{positions} +" in text
    assert f"out0[n * 1048576{windows} +" in text and f"in5[n * 1048576{windows} +" in text


def test_no_window_no_work():
    """Fewer positions than a window has."""
    made = generate(replace(pooled(convolution(2, 1, 5, 8, (5,), (3,)), 4).kernel, tiling=WGMMA), "k")
    assert "KW_LAUNCH" not in made.definition and made.workspace_bytes == 0


@needs_nvcc
@pytest.mark.parametrize(("core", "architecture"), [("wgmma", "90a"), ("mma", "80"), ("mma", "100")])
def test_wgmma_and_mma_compile_without_spills(core, architecture, tmp_path):
    plane = {"padding": 1}
    chosen = [(with_much(convolution(32, 1, 64, 128, (64, 64), (3, 3), **plane), 2), None),
              (pooled(convolution(32, 1, 64, 128, (64, 64), (3, 3), **plane, scheme="fp16"), 2), None),
              (with_much(convolution(32, 1, 32, 64, (64, 64), (3, 3), **plane, scheme="fp16"), 4), None)]
    if core == "wgmma":
        both = convolution(32, 1, 64, 64, (64, 64), (4, 4), stride=2, transposed=True, **plane)
        chosen += [(with_much(both, 2), None), *((with_much(MANY, size), PINGPONG) for size in (8, 16, 64))]
    kernels = [replace(c.kernel, tiling=tiling or tilings(c.kernel, core)[0]) for c, tiling in chosen]
    check_compiles(kernels, architecture, tmp_path)


@needs_nvcc
@pytest.mark.parametrize(("channels", "scheme"), [(64, "fp16"), (64, "fp16x3"), (8, "fp16x3")])
def test_lines_compile(channels, scheme, tmp_path):
    """All tilings that are proposed; two of them that bring x themselves spill a few registers."""
    kernel = pooled(lined(convolution(32, 1, channels, 128, (64, 64), (3, 3), padding=1, scheme=scheme)), 2).kernel
    check_compiles([replace(kernel, tiling=tiling) for tiling in tilings(kernel, "wgmma")], "90a", tmp_path, spilled=36)
