"""Core sm90 where tiles have both output parities of the last axis."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import cases, convolution, matmul, two_phase_cases, with_epilogue
from contraction_tools import run, tilings_of_rows
from gemm_epilogues import channels_last, softmax
from gemm_matrix import Matrix, built, check, name_of, one_in, promoted

from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds, tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.describe import tiling_words
from kernelwright.plan.records import KernelConfig
from kernelwright.tune.contraction_trials import words

BOTH = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2, parities=2)
PINGPONG = Tiling("wgmma", rows=128, columns=64, depth=32, stages=2, pingpong=2, parities=2)
SEVERAL = two_phase_cases()
FAR = SEVERAL[9]  # taps of one phase alone in each tap group
# Every kind of block: rows of a warpgroup, one and two warpgroups to a tile, two subtiles, promotion, few taps a step.
TILINGS = (replace(BOTH, rows=128, columns=64, cluster=2), replace(BOTH, rows=256, columns=24, promote=0),
           replace(BOTH, columns=128, stages=2, promote=0), replace(BOTH, columns=96, pingpong=2, promote=1),
           replace(BOTH, depth=64, stages=8, promote=1), replace(BOTH, columns=64, depth=32, pingpong=3, promote=0))
CHECKED = [
    *((case, PINGPONG if number in (1, 3, 5, 11, 12) else BOTH) for number, case in enumerate(SEVERAL)),
    *((with_epilogue(convolution(2, 1, 24, 100, (7, 9), (3, 3), stride=2, padding=1, transposed=True)), tiling)
      for tiling in TILINGS),
    (SEVERAL[6], replace(BOTH, columns=40, depth=64, stages=4, promote=1)),
    (FAR, replace(PINGPONG, rows=64, cluster=2, promote=1)), (SEVERAL[2], replace(BOTH, pingpong=3)),
    (two_phase_cases("native", "bfloat16")[11], replace(BOTH, promote=0)),
]
#: The same products in tiles of one phase: as many channels as a step has, so that sums are added up in one order.
ALONE = [(case, replace(PINGPONG, parities=n)) for case in two_phase_cases("fp16")[0:7:6] for n in (2, 1)]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built([*CHECKED, *ALONE])


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7", "2026")
    in_orders = one_in(4)
    as_accurate = promoted(CHECKED)
    not_finite = weight_not_finite = [0, 2, 4, 6, 7, 9, 10, 13]
    of_magnitudes = [0, 4]


@pytest.mark.parametrize("number", range(0, len(ALONE), 2), ids=[case.name for case, _ in ALONE[::2]])
def test_no_bit_differs_from_tiles_of_one_output_parity(number, libraries):
    case = ALONE[number][0]
    both, one = (run(*libraries[len(CHECKED) + number + i], case.inputs())[0] for i in (0, 1))
    check(case, both)
    assert torch.equal(both[0], one[0])


@pytest.mark.parametrize("case", SEVERAL[:10], ids=lambda case: case.name)
def test_rows_are_brought_once_for_both_output_parities(case):
    both, one = (Geometry(case.kernel, replace(BOTH, parities=n)) for n in (2, 1))
    assert len(one.classes) == 2 * len(both.classes)
    for group in both.classes:
        own = [c for c in one.classes if c.phases[:-1] == group.phases[:-1]]
        assert group.phases == own[0].phases and group.counts == own[0].counts
        assert max(len(c.runs) for c in own) <= len(group.runs) <= sum(len(c.runs) for c in own)
        for phase, alone in enumerate(own):
            places = sorted((run.phase, run.shift + beyond, entry) for run in alone.runs for beyond, entry in run.taps)
            assert places == sorted((run.phase, run.shift + beyond, entry) for run in group.runs
                                    for (beyond, entry), feed in zip(run.taps, run.feeds, strict=True) if feed == phase)
    if case is not FAR:
        assert sum(len(c.runs) for c in both.classes) < sum(len(c.runs) for c in one.classes) or not one.classes[0].runs


@pytest.mark.parametrize(("case", "tiling"), CHECKED, ids=[name_of(*entry) for entry in CHECKED])
def test_pieces_have_their_taps_in_the_order_of_phases(case, tiling):
    layout = Layout(Geometry(case.kernel, tiling), 0)
    alone = Layout(Geometry(case.kernel, replace(tiling, parities=1)), 0)
    assert layout.sums * (1 + alone.parts) == 2 * alone.sums * (1 + layout.parts)
    for group, tap_groups in zip(layout.geometry.classes, layout.tap_groups, strict=True):
        feeds = {entry: feed for run in group.runs for (_, entry), feed in zip(run.taps, run.feeds, strict=True)}
        assert sorted(feeds) == sorted(entry for tap_group in tap_groups for _, entry in tap_group.taps)
        for tap_group in tap_groups:
            order = [feeds[entry] for _, entry in tap_group.taps]
            assert order == sorted(order) and tap_group.counts == (order.count(0), order.count(1))
            assert tap_group.rows == tiling.rows + max(beyond for beyond, _ in tap_group.taps)


def test_pieces_of_one_output_parity_alone_are_among_them():
    lacking = [any(0 in tap_group.counts for tap_groups in Layout(Geometry(c.kernel, t), 0).tap_groups
                   for tap_group in tap_groups)
               for c, t in CHECKED if t.promote]
    assert any(lacking) and not all(lacking)


def test_accesses_to_a_subtile_meet_no_bank_conflict():
    """Both phases of an element are written together, by half a warp at a time; reads are of neighbours."""
    for case, tiling in CHECKED:
        made = epilogue(Geometry(case.kernel, tiling), "k")
        places = [lane // 4 * made.row_stride + lane % 4 * 2 * made.column_stride for lane in range(16)]
        assert made.row_stride == 2 and len({place % 32 // 2 for place in places}) == 16
        assert made.column_stride % 2 == 0 and made.floats % made.column_stride == 0


@pytest.mark.parametrize(("case", "change"), [
    (SEVERAL[0], {"split_k": 2}), (SEVERAL[0], {"columns": 192}), (SEVERAL[0], {"columns": 72}),
    (SEVERAL[0], {"parities": 3}), (SEVERAL[0], {"parities": 0}), (SEVERAL[0], {"core": "mma"}),
    (SEVERAL[0], {"rows": 256, "columns": 128}), (matmul(70, 40, 36), {}),
    (channels_last(softmax(SEVERAL[0])), {}), (channels_last(SEVERAL[0]), {}),
    (convolution(2, 1, 16, 24, (9,), (3,), padding=1), {}),
    (convolution(2, 1, 16, 24, (9,), (3,), stride=3, transposed=True), {}),
    (convolution(2, 1, 16, 24, (9, 9), (3, 3), stride=(2, 1), transposed=True), {}),
    (convolution(2, 1, 16, 24, (9,), (1,), stride=2, transposed=True), {}),
    (convolution(2, 1, 16, 24, (9,), (3,), stride=2, dilation=2, transposed=True), {}),
    (convolution(2, 1, 16, 24, (1,), (3,), stride=2, padding=1, transposed=True), {})])
def test_what_has_no_two_output_parities_is_refused(case, change):
    with pytest.raises(ValueError, match=r"no tiles|takes"):
        generate(replace(case.kernel, tiling=replace(BOTH, **change)), "k")
    if not change:
        assert all(tiling.parities == 1 for tiling in tilings(case.kernel, "wgmma"))


@pytest.mark.parametrize("case", [*SEVERAL, *two_phase_cases("fp16"), *two_phase_cases("native", "float16"),
                                  *(convolution(128, 1, 64, 64, (128, 128), (3, 3), stride=2, padding=1,
                                                transposed=True, scheme=scheme) for scheme in ("fp16", "fp16x3"))],
                         ids=lambda case: case.name)
def test_both_kinds_of_tiles_are_proposed(case):
    found = tilings_of_rows(case.kernel)
    assert [t.parities for t in found[:6]].count(2) == 5 and len(set(found)) == len(found) <= 8
    for tiling in found:
        generate(replace(case.kernel, tiling=tiling), "k")
        assert predicted_milliseconds(case.kernel, tiling) > 0
    assert not any(t.parities == 2 for c in (case, cases()[0]) for t in tilings(c.kernel, "mma"))


def test_three_consumer_warpgroups_of_both_output_parities_are_proposed():
    """They leave no registers for those who pack x or read it as it lies; lines of odd lengths are not overlapped."""
    for longer in (0, 1):
        case = convolution(128, 1, 64, 128, (64, 64), (4, 4), stride=2, padding=1, output_padding=longer,
                           transposed=True, scheme="fp16")
        found = tilings(case.kernel, "wgmma")
        three = [t for t in found if t.pingpong == 3]
        assert three[0] == found[2] and three[0].rows == 64 and three[0].from_registers == (not longer)
        assert not any(t.packs_concurrently or t.converts_left for t in three if not t.overlap)


def test_words_and_records():
    assert words(KernelConfig("fp16", PINGPONG)) == "fp16 wgmma 128x64x32, 2 stages, pingpong 2, parities 2"
    assert "both output-parity classes of an axis in a tile" in tiling_words(PINGPONG)
    older = asdict(replace(PINGPONG, parities=1))
    del older["parities"]  # as records were before there was a choice
    assert Tiling(**older) == replace(PINGPONG, parities=1) and Tiling(**asdict(PINGPONG)) == PINGPONG


@needs_nvcc
def test_wgmma_compiles_without_spills_or_serialised_products(tmp_path):
    plane = {"stride": 2, "padding": 1, "output_padding": 1, "transposed": True}
    chosen = [with_epilogue(convolution(128, 1, 64, 64, (128, 128), (3, 3), **plane, scheme="fp16")),
              with_epilogue(convolution(128, 1, 64, 128, (64, 64), (4, 4), **plane)),
              with_epilogue(convolution(16, 1, 32, 64, (16, 32, 32), (3, 3, 3), **plane))]
    # Of those that overlap and pack x as well 12 bytes spill, and they are the fastest of some even so.
    kernels = [replace(case.kernel, tiling=next(t for t in tilings(case.kernel, "wgmma")
                                                if t.parities == 2 and not t.packs_concurrently)) for case in chosen]
    kernels += [replace(chosen[0].kernel, tiling=replace(PINGPONG, rows=64, stages=6, cluster=2, pingpong=3)),
                replace(FAR.kernel, tiling=replace(BOTH, promote=1))]
    check_compiles(kernels, "90a", tmp_path)
