"""Epilogue reduce_positions through subtiles, of the cores sm90 and sm80: against float64; compiled; refused."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import compiled, generated, run
from gemm_epilogues import SUM, average, channels_last, every, moments, totalled
from gemm_matrix import EDITS_OF_TOTALS, GuessedScales, Matrix, built, check, one_in

from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.describe import meaning
from kernelwright.plan.expressions import Apply, Constant, Load, Reduced
from kernelwright.plan.kernels import Reduction
from kernelwright.plan.records import KernelStep

WGMMA = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
MMA = Tiling("mma", rows=64, columns=64, depth=16, stages=2, promote=1)


def seven(case: ContractionCase) -> ContractionCase:
    """Totals of seven expressions, whose values take more than a block's shared memory where a subtile has 128
    columns."""
    return totalled(case, *(("sum", Apply("mul", (SUM, Constant(float(n))))) for n in range(7)))


IMAGE = convolution(3, 1, 5, 20, (7, 9), (3, 3), padding=1)  # several n in a subtile
GROUPS = convolution(2, 2, 9, 13, (8, 9), (3, 3), padding=1)
VOLUME = convolution(2, 1, 20, 40, (4, 5, 6), (3, 3, 3), padding=1)
LINE = convolution(3, 1, 24, 100, (150,), (3,), padding=1)
STRIDED = convolution(2, 1, 16, 24, (21, 17), (3, 2), dilation=2, stride=2)
APART = convolution(2, 1, 9, 12, (9, 10), (4, 4), stride=2, padding=1, transposed=True)  # four classes
ODD = convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, transposed=True)  # of odd sizes
SPARSE = convolution(2, 1, 8, 8, (9, 9), (1, 1), stride=3, transposed=True)  # classes without taps
POINTS = convolution(2, 1, 36, 72, (9, 9), (1, 1))  # weights that may be read as they lie
MANY = convolution(1, 1, 3, 8, (72, 70), (3, 3), padding=1, scheme="fp16")  # subtiles enough for several warps

CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (every(IMAGE), WGMMA), (moments(GROUPS), WGMMA), (average(VOLUME), replace(WGMMA, columns=48)),
    (every(LINE, ordinary=False), replace(WGMMA, rows=128, columns=104, promote=0, stages=2, pingpong=2)),
    (every(STRIDED), replace(WGMMA, rows=128, cluster=2)), (moments(APART), replace(WGMMA, columns=16)),
    (every(SPARSE), replace(WGMMA, columns=8)), (average(MANY), replace(WGMMA, rows=128, columns=8, pingpong=2)),
    (moments(MANY), replace(WGMMA, columns=8, promote=0)),
    (moments(LINE), replace(WGMMA, columns=192, stages=2, promote=0)), (every(LINE), replace(WGMMA, columns=40)),
    (every(GROUPS), replace(WGMMA, split_k=3)), (average(LINE), replace(WGMMA, columns=128, split_k=2, cluster=2)),
    (every(APART), replace(WGMMA, parities=2)), (moments(ODD), replace(WGMMA, parities=2, columns=24)),
    (every(ODD, ordinary=False), replace(WGMMA, rows=128, columns=64, parities=2, promote=0, pingpong=2)),
    (average(APART), replace(WGMMA, columns=128, parities=2, cluster=2, promote=0)),
    (every(IMAGE), MMA), (moments(LINE), replace(MMA, rows=128, columns=128)), (average(GROUPS), MMA),
    (moments(ODD), replace(MMA, columns=32)),
    (moments(POINTS), Tiling("mma", rows=64, columns=128, depth=32, stages=3, promote=1, converts_right=True)),
    (every(convolution(2, 1, 16, 24, (11, 8), (3, 2), scheme="native", dtype="bfloat16")), replace(WGMMA, promote=0)),
    (moments(LINE), replace(MMA, rows=256, columns=128)),  # two consumer warpgroups
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7", "2026")
    in_orders = one_in(3)
    of_magnitudes = [0, 1, 12, 14, 18]


@pytest.mark.parametrize("number", [0, 1, 3, 5, 11, 13, 14, 17, 18, 20])
def test_nan_and_inf_come_out_where_pytorch_has_them(number, libraries):
    case = CHECKED[number][0]
    inputs = case.inputs()
    inputs[1] = inputs[1].abs()  # so that sums are infinite, a mean as well, and its variance NaN
    inputs[0].view(-1)[3], inputs[0].view(-1)[-1] = nan, inf  # of the first n, and of the last
    found = run(*libraries[number], inputs)[0]
    check(case, found, inputs)
    reductions = case.kernel.position_reductions
    first = len(case.kernel.stores) - len(reductions) - sum(r.kind == "moments" for r in reductions)
    assert all(bool(x.isnan().any()) for x in found[first:])
    assert any(bool(x.isinf().any()) for x in found[first:])
    assert bool(found[first].isfinite().any()) == (case.kernel.batch * case.kernel.groups > 2)


class TestGuessedScales(GuessedScales):
    """What marks a row as wrongly guessed is no part of its scale."""

    entries = [(every(convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1)), WGMMA)]
    edits = EDITS_OF_TOTALS


@pytest.mark.parametrize("number", [n for n, (c, _) in enumerate(CHECKED)
                                    if len(c.kernel.stores) == 6 and c.kernel.scheme == "fp16x3"])
def test_small_variances_beside_large_means(number, libraries):
    """Of the values that the kernel itself stored, so that their rounding is not in question."""
    case = CHECKED[number][0]
    domain = case.kernel.domain
    inputs = case.inputs()
    inputs[2] += 3e4
    inputs[3] += torch.arange(inputs[3].numel()) % 97 / 40  # subtiles differ in their means
    found = run(*libraries[number], inputs)[0]
    stored = found[0].double().reshape(*domain[:3], -1)
    assert stored.mean() > 1e4 * stored.std(-1).max() / 4
    torch.testing.assert_close(found[3].double().reshape(domain[:3]), stored.mean(-1), rtol=2.0**-23, atol=0)
    torch.testing.assert_close(found[4].double().reshape(domain[:3]), stored.var(-1, correction=0), rtol=1e-6, atol=0)


def test_equal_values_have_no_variance(libraries):
    case = CHECKED[1][0]
    inputs = case.inputs()
    inputs[1] *= 0
    found = run(*libraries[1], inputs)[0]
    assert all(not x.any() for x in (found[0], found[2]))


@pytest.mark.parametrize("columns", range(8, 129, 8))
@pytest.mark.parametrize("phases", [1, 2])
def test_threads_of_a_column_read_each_position_once_and_no_bank_twice(columns, phases):
    if columns * phases > 128:
        return
    made = epilogue(Geometry(moments(APART).kernel, replace(WGMMA, columns=columns, parities=phases)), "k")
    text = made.definitions[made.definitions.index("k_partials("):]
    share = int(found[1]) if (found := re.search(r"lane = thread % (\d+);", text)) else 1
    steps, at = re.search(r"i < (\d+); \+\+i\) {\s+const int at = ([^;]+);", text).groups()
    assert columns * share <= 128 < 2 * columns * share
    for i in range(int(steps)):
        places = [eval(at.replace("/", "//"), {"i": i, "lane": t % share}) + t // share * made.column_stride
                  for t in range(columns * share)]
        for first in range(0, len(places) - 7, 8):
            assert len({place % 32 // 4 for place in places[first:first + 8]}) == 8
    read = sorted(eval(at.replace("/", "//"), {"i": i, "lane": lane})
                  for i in range(int(steps)) for lane in range(share))
    assert read == list(range(0, 64 * phases, 4))


SMALL = convolution(4, 1, 8, 16, (6, 5), (3, 3), padding=1)  # 56 rows for each n
PLAIN = moments(IMAGE).kernel
STORE = PLAIN.stores[1]


@pytest.mark.parametrize("kernel, tiling, words", [
    (replace(PLAIN, scheme="float32"), None, "float32"), (moments(SMALL).kernel, WGMMA, "fewer than 64 rows"),
    (moments(SMALL).kernel, None, "no tiling"), (moments(matmul(300, 40, 36)).kernel, MMA, "fewer than 64 rows"),
    (channels_last(moments(IMAGE)).kernel, WGMMA, "neighbours"),
    (channels_last(moments(IMAGE)).kernel, MMA, "neighbours"),
    (channels_last(moments(APART)).kernel, replace(WGMMA, parities=2), "neighbours"),
    (replace(PLAIN, position_reductions=(Reduction("logsumexp", SUM),)), WGMMA, "no reductions over positions but"),
    (replace(PLAIN, position_reductions=(Reduction("moments", Reduced(1)),)), WGMMA,
     "no reductions over positions but"),
    (replace(PLAIN, pools=(Reduction("max", SUM),), pool_size=2), WGMMA, "beside"),
    (replace(PLAIN, reductions=(Reduction("max", SUM),)), WGMMA, "beside"),
    (every(LINE).kernel, replace(MMA, rows=256, columns=128), "bytes of shared memory"),
    (seven(LINE).kernel, replace(WGMMA, columns=128, split_k=2), "bytes of a subtile"),
    (replace(PLAIN, axes=(replace(PLAIN.axes[0], out_size=0), PLAIN.axes[1])), WGMMA, "no positions"),
    (replace(PLAIN, stores=(replace(STORE, index=PLAIN.stores[0].index),)), WGMMA, "differ from position"),
    (replace(PLAIN, stores=(replace(STORE, expression=Apply("add", (Reduced(1), SUM))),)), WGMMA, "differ"),
    (replace(PLAIN, stores=(replace(STORE, expression=Apply("add", (Reduced(1), Load(0, PLAIN.stores[0].index)))),)),
     WGMMA, "differ"),
])
def test_what_has_no_totals_is_refused(kernel, tiling, words):
    with pytest.raises(ValueError, match=words):
        generate(replace(kernel, tiling=tiling), "k")


@pytest.mark.parametrize("core", ["wgmma", "mma"])
@pytest.mark.parametrize("case", [
    every(IMAGE), every(ODD), average(LINE), moments(APART),
    every(convolution(128, 1, 64, 128, (56, 56), (3, 3), padding=1)),
    every(convolution(128, 1, 64, 128, (56, 56), (3, 3), padding=1, scheme="fp16"), ordinary=False),
    average(convolution(16, 1, 256, 512, (14, 14), (3, 3), padding=1)),
    every(convolution(64, 1, 64, 64, (64, 64), (4, 4), stride=2, padding=1, transposed=True))], ids=lambda c: c.name)
def test_tilings_fit(case, core):
    found = tilings(case.kernel, core)
    assert found and len(set(found)) == len(found)
    for tiling in found:
        generate(replace(case.kernel, tiling=tiling), "k")
    assert (core == "wgmma" and case.kernel.axes[-1].out_stride == 2) == any(t.parities == 2 for t in found)
    assert not tilings(moments(SMALL).kernel, core)


@pytest.mark.parametrize("core", ["wgmma", "mma"])
def test_tilings_have_room_for_many_totals(core):
    """Also in the kernel that adds parts of the steps, of few rows and many channels."""
    case = convolution(1, 1, 4096, 128, (8, 8), (3, 3), padding=1)
    assert core == "mma" or any(t.split_k > 1 and t.columns == 128 for t in tilings(moments(case).kernel, core))
    found = tilings(seven(case).kernel, core)
    assert found
    for tiling in found:
        generate(replace(seven(case).kernel, tiling=tiling), "k")


def test_a_subtile_holds_the_values_of_each_distinct_expression():
    one, two = (epilogue(Geometry(make(IMAGE).kernel, WGMMA), "k").floats for make in (moments, every))
    assert (one, two) == (32 * 68 + 4, 2 * 32 * 68 + 4)
    pairs = epilogue(Geometry(every(APART).kernel, replace(WGMMA, parities=2)), "k")
    assert pairs.floats == 2 * 32 * 132 + 8
    assert Layout(Geometry(every(IMAGE).kernel, WGMMA), two).shared_bytes <= 227 * 1024


@needs_nvcc
@pytest.mark.parametrize("core, architecture", [("wgmma", "90a"), ("mma", "80"), ("mma", "90a")])
def test_compiles_without_trouble(core, architecture, tmp_path):
    plane = convolution(128, 1, 64, 128, (56, 56), (3, 3), padding=1)
    turned = convolution(64, 1, 64, 64, (64, 64), (4, 4), stride=2, padding=1, transposed=True, scheme="fp16")
    kernels = [replace(case.kernel, tiling=tilings(case.kernel, core)[0])
               for case in (every(plane), moments(turned), average(turned))]
    if core == "wgmma":
        kernels += [replace(moments(plane).kernel, tiling=tiling)
                    for tiling in (replace(WGMMA, columns=128, split_k=2),
                                   replace(WGMMA, rows=128, columns=128, depth=32, promote=4))]
    said = check_compiles(kernels, architecture, tmp_path)
    if core == "mma":  # blocks of 128 threads, of which several share a multiprocessor and its barriers
        assert "used 1 barriers" in said and "used 16 barriers" not in said


def test_more_rows_than_an_int_counts_compile():
    many = convolution(2**25, 1, 8, 8, (8, 8), (1, 1), scheme="native", dtype="float16")
    chosen = [(moments(many), replace(WGMMA, columns=8)), (every(many), replace(MMA, promote=0)),
              (many, replace(WGMMA, columns=8)),
              (moments(convolution(1, 1, 8, 8, (2**14, 2**15), (1, 1))), replace(WGMMA, columns=8))]  # of one n
    sources = [generated(case.kernel, tiling, f"k{n}") for n, (case, tiling) in enumerate(chosen)]
    assert all("const long long row = first_row" in source.text for source in sources[:3])
    assert "const long long first = (long long)(block" in sources[3].text
    assert len(compiled(sources, sanitize=False)) == 4


def test_words_say_what_is_reduced():
    kernel = every(GROUPS).kernel
    said = meaning(KernelStep("k", kernel, (), (), ()))
    assert "sum, max, moments, min over the 72 positions of each channel" in said
    assert "positions of each channel" not in meaning(KernelStep("k", GROUPS.kernel, (), (), ()))
