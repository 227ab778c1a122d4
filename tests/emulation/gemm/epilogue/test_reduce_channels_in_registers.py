"""Epilogue reduce_channels direct from registers, of the core sm90, of one output parity and of both."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import run
from gemm_epilogues import BIASED, alone, call, chained, channels_last, normed, placed, reducing, softmax
from gemm_matrix import ALL, Matrix, built, check
from test_reduce_channels_output_parity import CHECKED as BOTH_PARITIES
from test_reduce_channels_output_parity import PLANE

from kernelwright.codegen.cuda.gemm.epilogue.quotients import decaying, shares
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels_in_registers import folds
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Constant, Reduced
from kernelwright.plan.kernels import Reduction

ONE = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2, from_registers=True)
TALL = replace(ONE, rows=128, pingpong=2)
TALLER = replace(ONE, rows=256, promote=0)
POWER = call("exp", call("sub", BIASED, Reduced(1)))


def gated(case: ContractionCase) -> ContractionCase:
    """A sigmoid of a softmax, a softmax of its own exponentials' halves, and one that no maximum keeps small."""
    plain = call("exp", call("mul", BIASED, Constant(0.01)))
    return reducing(case, (Reduction("max", BIASED), Reduction("sum", POWER), Reduction("sum", plain)),
                    ((True, call("sigmoid", call("mul", call("div", POWER, Reduced(2)), Constant(3.0)))),
                     (True, call("div", plain, Reduced(3)))))


IMAGE = convolution(3, 1, 5, 20, (7, 9), (3, 3), padding=1)
TRANSPOSED = convolution(2, 2, 9, 13, (7, 6), (3, 3), stride=2, padding=1, transposed=True)
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (softmax(IMAGE), ONE), (normed(TRANSPOSED), replace(ONE, columns=16)), (chained(IMAGE), replace(TALL, columns=24)),
    (gated(IMAGE), TALL), (gated(TRANSPOSED), TALLER),
    (softmax(convolution(2, 1, 9, 32, (35,), (3,))), ONE), (normed(convolution(2, 1, 9, 1, (70,), (3,))), TALL),
    (softmax(convolution(2, 1, 20, 160, (5, 7), (1, 1))), replace(ONE, columns=160, pingpong=2)),
    *((alone(IMAGE, kind), replace(ONE, columns=24)) for kind in ("sum", "max", "min", "logsumexp", "moments")),
    (softmax(convolution(2, 1, 4, 64, (6, 6, 6), (2, 2, 2), scheme="fp16")), replace(TALL, columns=64, promote=0)),
    (gated(convolution(2, 1, 8, 3, (5, 5), (2, 2), scheme="native", dtype="float16")),
     replace(ONE, columns=8, promote=0)),
    *((case, replace(tiling, from_registers=True)) for case, tiling in BOTH_PARITIES
      if folds(Geometry(case.kernel, tiling))),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7")
    not_finite = ALL
    of_magnitudes = [0, 2, 4, 6]
    magnitudes = ((1e-30, 1e30), (1e34, 1e-34), (1e25, 1e-25))
    side_by_side = [0, 2, 4]


def test_channels_are_reduced_in_registers():
    assert all(folds(Geometry(case.kernel, tiling)) for case, tiling in CHECKED)


@pytest.mark.parametrize("masked", [[0], [1, 2, 3, 19], list(range(20))])
@pytest.mark.parametrize("value", [-inf, inf, nan])
def test_biases_that_mask_channels(masked, value, libraries):
    """Exponentials of -inf are zeros; where no channel is left, or one is infinite, PyTorch has NaN, too."""
    for number in (0, 3):
        case = CHECKED[number][0]
        inputs = case.inputs()
        inputs[2][masked] = value
        check(case, run(*libraries[number], inputs)[0], inputs)


def test_what_depends_on_positions_or_turns_is_left_to_subtiles():
    assert folds(Geometry(softmax(IMAGE).kernel, ONE))
    others = [placed(IMAGE), channels_last(softmax(IMAGE)), softmax(matmul(70, 30, 32)), IMAGE]
    plain = replace(ONE, from_registers=False)
    for case in others:
        assert not folds(Geometry(case.kernel, plain))
        with pytest.raises(ValueError, match=r"no channels to reduce in registers|no lines of whole sectors"):
            generate(replace(case.kernel, tiling=ONE), "k")
    for tiling in (replace(plain, core="mma"), replace(plain, split_k=2)):
        assert not folds(Geometry(softmax(IMAGE).kernel, tiling))


def test_there_are_registers():
    """Sums of two sets of rows and both phases leave none; five walks over 128 sums of a thread keep too much."""
    volume = convolution(16, 1, 32, 64, (16, 32, 32), (3, 3, 3), **PLANE, scheme="fp16")
    both = Tiling("wgmma", 64, 64, 16, 3, pingpong=3, parities=2)
    assert folds(Geometry(normed(volume).kernel, both))
    assert not folds(Geometry(normed(volume).kernel, replace(both, rows=128, pingpong=2, converts_left=True)))
    wide = convolution(128, 1, 64, 128, (64, 64), (4, 4), **PLANE, scheme="fp16")
    both = Tiling("wgmma", 64, 128, 16, 6, cluster=2, pingpong=2, parities=2)
    assert folds(Geometry(softmax(wide).kernel, both)) and not folds(Geometry(normed(wide).kernel, both))


def test_accesses_to_a_subtile_meet_no_bank_conflict():
    for case, tiling in CHECKED:
        made = epilogue(Geometry(case.kernel, tiling), "k")
        places = [lane // 4 * 2 * made.row_stride + lane % 4 * 2 for lane in range(16)]
        assert len({place % 32 // 2 for place in places}) == 16
        assert len({lane * made.row_stride % 32 // 4 for lane in range(8)}) == 8 and made.row_stride % 4 == 0


def test_shares_are_quotients_of_a_softmax_alone():
    """Another numerator may be infinite, another sum zero."""
    known = [("max", BIASED), ("sum", POWER), ("sum", call("exp", BIASED)), ("max", POWER)]
    share = call("div", POWER, Reduced(2))
    assert shares(share, known).function == "share"
    assert shares(call("neg", share), known).arguments[0].function == "share"
    for other in (call("div", BIASED, Reduced(2)), call("div", POWER, Reduced(3)), call("div", POWER, Reduced(4)),
                  call("div", POWER, Reduced(2, 1)), call("div", call("exp", BIASED), Reduced(3)),
                  call("mul", POWER, Reduced(2))):
        assert shares(other, known) == other
    assert shares(share, [("min", BIASED), *known[1:]]) == share


def test_exponentials_of_shares_are_short_where_nothing_tells_them_from_zero():
    share, known = call("share", POWER, Reduced(2)), [("max", BIASED), ("sum", POWER)]
    short = call("share", call("decay", *POWER.arguments), Reduced(2))
    blunt, other = call("sigmoid", call("mul", share, Constant(3.0))), call("mul", call("exp", share), Reduced(1))
    assert decaying([blunt, other], known) == [
        call("sigmoid", call("mul", short, Constant(3.0))), call("mul", call("exp", short), Reduced(1)), BIASED,
        short.arguments[0]]
    for roots in ([share], [call("log", share)], [blunt, call("add", share, Constant(1.0))], [BIASED],
                  [blunt, call("neg", POWER)]):
        assert decaying(roots, known) == [*roots, BIASED, POWER]
    assert decaying([blunt], [*known, ("min", POWER)]) == [blunt, BIASED, POWER, POWER]


@needs_nvcc
def test_they_compile_without_spills_or_serialised_products(tmp_path):
    kernels = []
    for build, scheme in ((softmax, "fp16"), (normed, "fp16"), (normed, "fp16x3"), (gated, "fp16")):
        case = build(convolution(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme=scheme))
        kernels += [replace(case.kernel, tiling=tiling) for tiling in tilings(case.kernel, "wgmma")
                    if tiling.from_registers][:1]
    assert len(kernels) == 4
    check_compiles(kernels, "90a", tmp_path)
