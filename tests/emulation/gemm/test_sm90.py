"""Core sm90, on wgmma, with operands that are packed before and stores through subtiles: against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from contraction_tools import tilings_of_rows
from gemm_matrix import Matrix, built, one_in, promoted

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.precision.truncation_bias import lost
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply

SMALL = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
PINGPONG = Tiling("wgmma", rows=128, columns=64, depth=32, stages=2, pingpong=2)
# Every kind of block once: rows of a warpgroup, one and two warpgroups to a tile, two consumer warpgroups, subtiles,
# promotion.
TILINGS = (replace(SMALL, rows=128, columns=128, stages=2), replace(SMALL, rows=128, columns=192, depth=32, stages=2),
           replace(SMALL, rows=256, columns=64, promote=0), replace(SMALL, rows=64, columns=16, pingpong=2, promote=1),
           replace(SMALL, columns=256, promote=0), replace(SMALL, columns=8, depth=64, promote=1))
SEVERAL_PIECES = convolution(1, 1, 17, 9, (5, 4, 6), (3, 3, 3), padding=1)
# Three runs of rows, one step each: w stays where stages are a multiple of them.
WIDE = convolution(2, 1, 8, 24, (5, 70), (3, 3), padding=1)
KEEPING = (replace(SMALL, stages=3), replace(SMALL, stages=6, cluster=2),
           replace(SMALL, rows=128, stages=3, pingpong=2))
NARROW = Tiling("wgmma", rows=64, columns=16, depth=64, stages=6, promote=2)
# Sums of 16 channels and two taps are promoted at a time.
LONG_WINDOW = convolution(2, 1, 40, 24, (5, 30), (3, 7), padding=2)
FINE = Tiling("wgmma", rows=64, columns=24, depth=16, stages=3, promote=1)

CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((case, SMALL) for case in cases()), *((case, PINGPONG) for case in cases()[::5]),
    *((matmul(150, 70, 200, transposed=(False, True)), tiling) for tiling in TILINGS),
    (SEVERAL_PIECES, NARROW), (with_epilogue(SEVERAL_PIECES), PINGPONG),
    *((case, SMALL) for case in cases("fp16")[::8]),
    (matmul(70, 150, 90), replace(SMALL, split_k=3)), (cases()[10], replace(PINGPONG, split_k=2, cluster=2)),
    (with_epilogue(matmul(90, 200, 300, groups=2)), replace(SMALL, columns=192, stages=2, split_k=5)),
    (matmul(300, 70, 90), replace(SMALL, cluster=2)), (matmul(200, 40, 30), replace(SMALL, cluster=4, promote=0)),
    (cases()[9], replace(PINGPONG, cluster=2)), (SEVERAL_PIECES, replace(NARROW, cluster=2)),
    *((matmul(90, 50, 40, scheme="native", dtype=dtype), replace(SMALL, promote=0)) for dtype in ("float16", "bfloat16")
      ),
    *((with_epilogue(WIDE), tiling) for tiling in KEEPING),
    (LONG_WINDOW, FINE), (with_epilogue(LONG_WINDOW), replace(FINE, rows=128, columns=32, pingpong=2, cluster=2)),
    (with_epilogue(convolution(2, 1, 40, 24, (4, 9), (5, 5), stride=2, padding=2, transposed=True)),
     replace(FINE, parities=2)),
    (with_epilogue(convolution(5, 1, 8, 24, (9, 40), (3, 3), padding=1)),
     Tiling("wgmma", rows=128, columns=24, depth=8, stages=4, promote=1, pingpong=4)),
    (with_epilogue(WIDE), replace(SMALL, rows=128, stages=3, pingpong=3)),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "7", "2026")
    in_orders = [*range(4), *range(len(cases()), len(CHECKED), 3)]
    as_accurate = promoted(CHECKED)
    on_device = one_in(2)


def test_steps_serve_taps_as_memory_allows():
    wide, narrow = Layout(Geometry(SEVERAL_PIECES.kernel, SMALL), 0), Layout(Geometry(SEVERAL_PIECES.kernel, NARROW), 0)
    assert wide.taps > narrow.taps
    for layout in (wide, narrow):
        assert layout.shared_bytes <= 227 * 1024
        entries = [entry for tap_group in layout.tap_groups[0] for _, entry in tap_group.taps]
        assert sorted(entries) == list(range(27))
        reach = layout.geometry.allocated_rows - (layout.geometry.blocks[0] - 1) * layout.geometry.tiling.rows
        assert all(tap_group.place + tap_group.rows <= reach for tap_group in layout.tap_groups[0])


def test_weights_stay_where_each_stage_has_one_step():
    def keeps(case: ContractionCase, tiling: Tiling) -> bool:
        return Layout(Geometry(case.kernel, tiling), 0).keeps_right

    assert all(keeps(WIDE, tiling) for tiling in KEEPING)
    assert not keeps(WIDE, replace(SMALL, stages=4)) and not keeps(WIDE, replace(SMALL, columns=16))
    assert not keeps(convolution(2, 1, 24, 24, (5, 70), (3, 3), padding=1), KEEPING[0])  # two depths: six steps
    assert not keeps(convolution(2, 2, 8, 24, (5, 70), (3, 3), padding=1), KEEPING[0])


def test_two_blocks_share_a_multiprocessor_where_registers_suffice():
    case = convolution(8, 1, 8, 64, (64, 64), (3, 3), padding=1, scheme="fp16")
    tiling = replace(SMALL, rows=64, columns=64, stages=6, promote=0)
    for change, blocks in (({}, 2), ({"cluster": 2}, 1), ({"columns": 128, "promote": 2}, 1), ({"stages": 12}, 1),
                           ({"rows": 128}, 1)):
        layout = Layout(Geometry(case.kernel, replace(tiling, **change)), 64 * 68)
        assert layout.blocks == blocks, change
        assert blocks == 1 or layout.moved_registers == 0


@pytest.mark.parametrize("case", [*cases(), *cases("fp16"), *cases("native", "float16"), matmul(4096, 4096, 4096),
                                  convolution(64, 1, 128, 256, (128, 128), (3, 3), padding=1)], ids=lambda c: c.name)
def test_tilings_fit_and_differ(case):
    found = tilings(case.kernel, "wgmma")
    assert 1 <= len(found) <= 8 and len(set(found)) == len(found)
    for tiling in found:
        generate(replace(case.kernel, tiling=tiling), "k")
    assert any(t.cluster == 1 for t in found)


def test_fine_promotion_is_proposed_where_sums_are_long():
    """Windows of many taps: some libraries' sums are shorter than 128 channels."""
    window = convolution(16, 1, 32, 64, (32, 32, 32), (5, 5, 5), stride=2, padding=2, transposed=True)
    fine, usual = (Layout(Geometry(window.kernel, t), 0) for t in (tilings(window.kernel, "wgmma")[n] for n in (3, 0)))
    assert fine.geometry.tiling.promote == 1 and lost(fine) < lost(usual) / 5
    assert all(max(tap_group.counts) <= 2 * fine.geometry.tiling.parities for group in fine.tap_groups
               for tap_group in group)
    for kernel in (WIDE.kernel, replace(window.kernel, scheme="fp16"), matmul(4096, 4096, 4096).kernel):
        assert not any(t.depth == 16 and t.promote == 1 for t in tilings(kernel, "wgmma"))


@pytest.mark.parametrize("change", [{"rows": 96}, {"columns": 264}, {"columns": 136}, {"stages": 1}, {"cluster": 3},
                                    {"pingpong": 5}, {"rows": 256, "columns": 256}, {"depth": 64, "stages": 40}])
def test_blocks_that_do_not_fit_are_refused(change):
    kernel = replace(matmul(512, 512, 512).kernel, tiling=replace(SMALL, **change))
    with pytest.raises(ValueError, match=r"no tiles|takes"):
        generate(kernel, "k")


def test_more_consumer_warpgroups_where_each_element_takes_many_instructions():
    """Four of few columns, three of more: among the first tilings, and nowhere where a bias is all there is."""
    def warpgroups(kernel: Contraction) -> list[tuple[int, int]]:
        found = [t for t in tilings_of_rows(kernel)[:6] if t.pingpong > 2]
        assert all(t.rows == 128 and t.columns >= kernel.out_channels for t in found)
        for tiling in found:
            generate(replace(kernel, tiling=tiling), "k")
        return [(t.pingpong, t.columns) for t in found]

    def of(function: str, case: ContractionCase) -> Contraction:
        (store,) = case.kernel.stores
        return replace(case.kernel, stores=(replace(store, expression=Apply(function, (store.expression,))),))

    few = convolution(128, 1, 8, 32, (255, 255), (3, 3))
    many = convolution(128, 1, 64, 64, (259, 259), (3, 3), scheme="fp16")
    assert warpgroups(of("sigmoid", few)) == [(4, 32), (3, 32)] and warpgroups(of("gelu_erf", many)) == [(3, 64)]
    assert warpgroups(of("relu", few)) == warpgroups(of("relu", many)) == []
