"""Core sm90 with x converted in the mainloop: producers read it as it lies in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from contraction_tools import all_generated, compiled, guessed_scales, run, tilings_of_rows, wrong_scales
from gemm_epilogues import DOUBLED, RELU, overlapping, softmax, totalled
from gemm_matrix import EDITS_WHERE_READ, GuessedScales, Matrix, built, one_in
from test_sm90 import NARROW, PINGPONG, SEVERAL_PIECES, SMALL

from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling

CONVERTED, WIDE_PINGPONG = replace(SMALL, converts_left=True), replace(PINGPONG, converts_left=True)
FEW = convolution(2, 1, 8, 24, (5, 70), (3, 3), padding=1)
MANY = convolution(2, 1, 64, 24, (5, 70), (3, 3), padding=1)
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((case, CONVERTED) for case in cases() if case.kernel.axes),
    *((case, WIDE_PINGPONG) for case in cases("fp16")[::3] if case.kernel.axes),
    # w stays where stages are a multiple of the steps.
    (with_epilogue(FEW), replace(CONVERTED, stages=3)), (with_epilogue(FEW), replace(CONVERTED, stages=6, cluster=2)),
    (with_epilogue(FEW), replace(CONVERTED, rows=128, stages=3, pingpong=2)),
    (FEW, replace(CONVERTED, depth=8)), (FEW, replace(CONVERTED, depth=8, stages=8, pingpong=2)),
    (MANY, replace(CONVERTED, depth=64, rows=128, stages=2)),
    (MANY, replace(CONVERTED, depth=32, rows=256, columns=24, stages=6)),
    (SEVERAL_PIECES, replace(NARROW, converts_left=True, cluster=2)),
    (cases()[10], replace(WIDE_PINGPONG, split_k=2, cluster=2)), (SEVERAL_PIECES, replace(CONVERTED, split_k=4)),
    overlapping(convolution(3, 1, 8, 20, (7, 12), (3, 3), padding=1), replace(CONVERTED, columns=16, pingpong=2)),
    overlapping(with_epilogue(convolution(2, 2, 8, 20, (3, 4, 6), (3, 3, 3), **DOUBLED, scheme="fp16")),
                replace(CONVERTED, rows=128, pingpong=2, parities=2, promote=0)),
    *((convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, scheme="native", dtype=dtype),
       replace(CONVERTED, promote=0)) for dtype in ("float16", "bfloat16")),
]
REDUCED = softmax(convolution(2, 1, 24, 32, (20, 20), (3, 3), padding=1)), CONVERTED
TOTALLED = totalled(convolution(2, 1, 24, 12, (20, 20), (3, 3), padding=1), ("sum", RELU), ordinary=False), CONVERTED

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    in_orders = one_in(3)
    not_finite = side_by_side = [n for n, (case, _) in enumerate(CHECKED)
                                 if case.kernel.scheme != "native" and case.kernel.batch > 1 and n % 2 == 0]
    on_device = [n for n, (_, tiling) in enumerate(CHECKED) if not tiling.overlap]


class TestGuessedScales(GuessedScales):
    entries = [(convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1), CONVERTED),
               (with_epilogue(convolution(2, 2, 12, 5, (20, 40), (2, 2), stride=2)), replace(WIDE_PINGPONG, cluster=2)),
               (convolution(2, 1, 8, 9, (20, 60), (3, 3), padding=1), replace(CONVERTED, depth=8, split_k=2)),
               (convolution(2, 1, 24, 9, (20, 20), (1, 1)), CONVERTED)]  # w is a matrix
    edits = EDITS_WHERE_READ


def test_results_are_those_of_packed_operands(libraries):
    """Products and sums are the same numbers in the same order, whoever brought them."""
    chosen = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme != "native"][::4]
    packed = compiled(all_generated([(CHECKED[n][0], replace(CHECKED[n][1], converts_left=False)) for n in chosen]))
    for n, library in zip(chosen, packed, strict=True):
        inputs = CHECKED[n][0].inputs()
        for mine, other in zip(run(*libraries[n], inputs)[0], run(*library, inputs)[0], strict=True):
            assert torch.equal(mine, other)


@pytest.mark.parametrize("case,tiling", [REDUCED, TOTALLED], ids=["channels", "totals"])
def test_reductions(case, tiling):
    with guessed_scales():
        library, text = compiled(all_generated([(case, tiling)]))[0]
    inputs = case.inputs()
    for value in (None, 300.0):
        if value is not None:
            inputs[0].view(-1)[4000] = value  # an element that the search does not look at
        found, workspace = run(library, text, inputs)
        assert wrong_scales(text, workspace) == (value is not None)
        for mine, expected in zip(found, case.expected(inputs), strict=True):
            scale = expected.abs().max()
            assert ((mine.double() - expected).abs() <= 2e-5 * scale).all()


def test_x_takes_no_memory():
    kernel = FEW.kernel
    packed, raw = (Geometry(kernel, tiling) for tiling in (SMALL, CONVERTED))
    assert raw.places["left"][1] == 0 < packed.places["left"][1]
    assert raw.workspace_bytes < packed.workspace_bytes


def test_x_is_packed_for_other_kernels():
    for case, tiling in ((matmul(70, 40, 36), CONVERTED), (FEW, Tiling("mma", 64, 32, 16, 2, converts_left=True))):
        with pytest.raises(ValueError, match="packed"):
            Geometry(case.kernel, tiling)


def test_no_warp_is_two_phases_ahead():
    """Between two steps of a warp there are at most as many as there are stages, or a barrier would be misread."""
    for case in (FEW, MANY, SEVERAL_PIECES, convolution(2, 1, 256, 24, (9, 30), (3, 3))):
        for depth in (8, 16, 32, 64):
            for stages in (2, 3, 4, 6, 8):
                tiling = replace(CONVERTED, depth=depth, stages=stages, columns=24)
                try:
                    layout = Layout(Geometry(case.kernel, tiling), 64)
                except ValueError:
                    continue
                together = layout.geometry.depths if layout.filling.whole_tap_groups else 1
                at_once = layout.filling.steps_at_once
                assert 1 <= at_once <= stages and (at_once - 1) * together + 1 <= stages
                assert layout.filling.warps * layout.filling.steps_at_once <= 4 * layout.producer_groups
                assert layout.fill_batch <= layout.filling.each


def test_tilings_read_few_channels_as_they_lie():
    few = convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1).kernel
    many = convolution(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme="fp16").kernel
    found = tilings_of_rows(few)
    assert any(t.converts_left for t in found[:4]) and any(not t.converts_left for t in found[:4])
    assert not any(t.converts_left for t in tilings_of_rows(many))
    assert not any(t.converts_left for t in tilings(matmul(4096, 4096, 4096).kernel, "wgmma"))


@needs_nvcc
def test_compiles_without_trouble(tmp_path):
    few = with_epilogue(convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1)).kernel
    kernels = [replace(few, tiling=tiling) for tiling in tilings_of_rows(few)[:4] if tiling.converts_left]
    kernels += [replace(few, scheme="fp16", tiling=tiling) for tiling in
                tilings_of_rows(replace(few, scheme="fp16"))[:2] if tiling.converts_left]
    assert kernels
    check_compiles(kernels, "90a", tmp_path)
