"""Core sm90: the order of a block's tiles where there are several output-parity classes and weights stay resident."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import softmax
from gemm_matrix import Matrix, built, check, name_of, one_in

from kernelwright.codegen.cuda.gemm.cost import cycles
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Reduced
from kernelwright.plan.kernels import Reduction

BOTH = Tiling("wgmma", rows=64, columns=16, depth=16, stages=3, promote=1, parities=2)


def transposed(batch: int, ins: int, outs: int, size: tuple[int, ...], window: int, **options) -> ContractionCase:
    windows = (window,) * len(size)
    return convolution(batch, 1, ins, outs, size, windows, stride=2, padding=1, transposed=True, **options)


#: The case, its tiling, and the order. Of 16 channels classes have 1 and 2 steps, or one each where lines are short.
CHECKED: list[tuple[ContractionCase, Tiling, str]] = [
    (with_epilogue(transposed(5, 16, 12, (6, 7), 3)), BOTH, "stacked"),
    (transposed(5, 16, 12, (9, 33), 3), replace(BOTH, stages=6), "stacked"),
    (transposed(5, 16, 12, (9, 33), 3), replace(BOTH, stages=3, pingpong=2), "stacked"),
    (transposed(5, 30, 12, (6, 7), 3), replace(BOTH, stages=4, pingpong=3, promote=2), "stacked"),
    (transposed(9, 16, 12, (6, 7), 3), replace(BOTH, cluster=2), "stacked"),
    (transposed(5, 16, 12, (6, 7), 3), replace(BOTH, converts_left=True), "stacked"),
    (transposed(5, 16, 12, (6, 7), 3), replace(BOTH, packs_concurrently=True), "stacked"),
    (transposed(3, 16, 8, (3, 33, 5), 3), replace(BOTH, columns=8, stages=9), "stacked"),
    (transposed(3, 16, 12, (4, 35), 3), replace(BOTH, parities=1, stages=5), "stacked"),
    (transposed(5, 16, 12, (9, 33), 4), replace(BOTH, stages=2), "side by side"),
    (with_epilogue(transposed(5, 30, 12, (6, 7), 4)), replace(BOTH, depth=32, pingpong=2), "side by side"),
    (transposed(9, 16, 12, (6, 7), 4), replace(BOTH, stages=2, converts_left=True), "side by side"),
    (transposed(5, 16, 12, (9, 33), 4), replace(BOTH, stages=2, packs_concurrently=True, pingpong=2), "side by side"),
    (transposed(3, 16, 12, (4, 35), 4, scheme="fp16"), replace(BOTH, parities=1, stages=2, promote=0), "side by side"),
    (softmax(transposed(5, 16, 12, (6, 7), 3)), replace(BOTH, stages=2), "in turn"),
    (softmax(transposed(5, 16, 12, (9, 33), 3)), replace(BOTH, stages=4, pingpong=2), "in turn"),
    (transposed(5, 16, 12, (6, 7), 3), replace(BOTH, stages=2), ""),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built([(case, tiling) for case, tiling, _ in CHECKED])


class TestMatrix(Matrix):
    entries = CHECKED
    orders = ("reverse", "11")
    in_orders = one_in(3)
    on_device = [n for n, (case, *_) in enumerate(CHECKED) if not case.kernel.reductions]


@pytest.mark.parametrize(("case", "tiling", "order"), CHECKED, ids=[name_of(*entry[:2]) for entry in CHECKED])
def test_tiles_are_in_the_order(case, tiling, order):
    assert Layout(Geometry(case.kernel, tiling), 0).order == order


@pytest.mark.parametrize("processors", ["1", "3", "7"])
def test_any_number_of_blocks(processors, libraries, monkeypatch):
    """Blocks that are no multiple of the classes bring the weights of another class as they come to it."""
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_PROCESSORS", processors)
    for (case, tiling, order), library in zip(CHECKED, libraries, strict=True):
        if order and tiling.cluster == 1 and not case.kernel.reductions:
            check(case, run(*library, case.inputs())[0])


def test_no_bit_differs_from_weights_brought_for_each_tile(libraries):
    case = CHECKED[0][0]
    kept = run(*libraries[0], case.inputs())[0]
    (library,) = compiled(all_generated([(case, replace(BOTH, stages=2))]))
    assert torch.equal(kept[0], run(*library, case.inputs())[0][0])


def test_pools_keep_the_order_of_bands():
    """Pools of two of 3 to 16 channels took 0.75 ms in turn, and 0.53 as they were (an H200)."""
    case = transposed(2, 16, 12, (6, 8, 8), 3)
    pooled = replace(case.kernel, pools=(Reduction("max", Reduced(0)),), pool_size=2,
                     stores=(replace(case.kernel.stores[0], expression=Reduced(1)),))
    tiling = replace(BOTH, stages=4)
    layouts = [Layout(Geometry(kernel, t), 0) for kernel, t in (
        (pooled, tiling), (softmax(case).kernel, tiling), (softmax(case).kernel, replace(tiling, converts_left=True)))]
    assert [layout.order for layout in layouts] == ["", "in turn", ""]


def test_weights_of_groups_and_of_many_columns_are_brought_again():
    grouped = convolution(2, 2, 16, 12, (6, 7), (3, 3), stride=2, padding=1, transposed=True)
    wide = transposed(2, 16, 40, (6, 7), 3)
    assert not any(Layout(Geometry(case.kernel, BOTH), 0).keeps_right for case in (grouped, wide))


def test_side_by_side_where_blocks_are_a_multiple_of_the_classes():
    """Of 66 clusters four classes would have each block bring weights for every tile."""
    volume = transposed(2, 16, 12, (4, 6, 7), 4)
    tiling = replace(BOTH, stages=4)
    orders = [Layout(Geometry(volume.kernel, replace(tiling, cluster=n)), 0).order for n in (1, 2)]
    assert orders == ["side by side", ""]


def test_proposed_where_they_fit():
    """Shapes of which an H200 was faster so: 64 to 64 channels of 4 x 4 and 3 x 3, 32 to 64 of 4 x 4 x 4."""
    shapes = [(transposed(32, 64, 64, (256, 256), 4, scheme="fp16"), "side by side"),
              (transposed(128, 64, 64, (128, 128), 3, scheme="fp16"), "stacked"),
              (transposed(32, 32, 64, (16, 32, 32), 4, scheme="fp16"), "side by side")]
    for case, order in shapes:
        layouts = [Layout(Geometry(case.kernel, tiling), 0) for tiling in tilings(case.kernel, "wgmma")[:5]]
        assert order in [layout.order for layout in layouts], case.name


def test_the_guess_counts_the_last_wave_of_a_stack():
    """Of few tiles whole stacks leave multiprocessors idle."""
    few = Geometry(transposed(1, 64, 64, (94, 94), 3, scheme="fp16").kernel,
                   Tiling("wgmma", 64, 64, 32, 6, pingpong=2, parities=2))
    many = replace(few, kernel=replace(few.kernel, batch=64))
    stacked, others = ([cycles(g, Layout(replace(g, tiling=replace(g.tiling, stages=n)), 0)) for g in (few, many)]
                       for n in (6, 5))
    assert stacked[0] > others[0] and stacked[1] < others[1]
