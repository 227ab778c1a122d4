"""Contractions on wgmma whose producers read x as it lies in memory, under the CPU emulation, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from contraction_tools import (
    all_generated,
    check_thread_order,
    compiled,
    guessed_scales,
    on_hopper,
    run,
    tilings_of_rows,
    wrong_scales,
)
from test_reduce_channels import softmax
from test_reduce_positions import RELU, totalled
from test_sm90 import NARROW, SEVERAL_PIECES, SMALL, TEAMS, check, check_on_the_device
from test_store import EDITS
from test_store_overlapped import DOUBLED, overlapping

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction

RAW, WIDE_TEAMS = replace(SMALL, converts_left=True), replace(TEAMS, converts_left=True)
FEW = convolution(2, 1, 8, 24, (5, 70), (3, 3), padding=1)
MANY = convolution(2, 1, 64, 24, (5, 70), (3, 3), padding=1)
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((case, RAW) for case in cases() if case.kernel.axes),
    *((case, WIDE_TEAMS) for case in cases("fp16")[::3] if case.kernel.axes),
    # w stays where stages are a multiple of the steps.
    (with_epilogue(FEW), replace(RAW, stages=3)), (with_epilogue(FEW), replace(RAW, stages=6, cluster=2)),
    (with_epilogue(FEW), replace(RAW, rows=128, stages=3, pingpong=2)),
    (FEW, replace(RAW, depth=8)), (FEW, replace(RAW, depth=8, stages=8, pingpong=2)),
    (MANY, replace(RAW, depth=64, rows=128, stages=2)), (MANY, replace(RAW, depth=32, rows=256, columns=24, stages=6)),
    (SEVERAL_PIECES, replace(NARROW, converts_left=True, cluster=2)),
    (cases()[10], replace(WIDE_TEAMS, split_k=2, cluster=2)), (SEVERAL_PIECES, replace(RAW, split_k=4)),
    overlapping(convolution(3, 1, 8, 20, (7, 12), (3, 3), padding=1), replace(RAW, columns=16, pingpong=2)),
    overlapping(with_epilogue(convolution(2, 2, 8, 20, (3, 4, 6), (3, 3, 3), **DOUBLED, scheme="fp16")),
                replace(RAW, rows=128, pingpong=2, parities=2, promote=0)),
    *((convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, scheme="native", dtype=dtype),
       replace(RAW, promote=0)) for dtype in ("float16", "bfloat16")),
]
REDUCED = softmax(convolution(2, 1, 24, 32, (20, 20), (3, 3), padding=1)), RAW
TOTALLED = totalled(convolution(2, 1, 24, 12, (20, 20), (3, 3), padding=1), ("sum", RELU), ordinary=False), RAW

pytestmark = pytest.mark.usefixtures("few_processors")


@pytest.fixture(scope="module")
def libraries():
    return compiled(all_generated(CHECKED))


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=[
    f"{case.name}-{t.rows}x{t.columns}x{t.depth}s{t.stages}t{t.pingpong}" for case, t in CHECKED])
def test_agrees_with_float64(number, libraries):
    case, _ = CHECKED[number]
    check(case, run(*libraries[number], case.inputs())[0])


@pytest.mark.parametrize("order", ["reverse", "2026"])
def test_no_order_of_threads_changes_a_bit(order, libraries):
    check_thread_order(order, [case for case, _ in CHECKED[::3]], libraries[::3])


def test_results_are_those_of_packed_operands(libraries):
    """Products and sums are the same numbers in the same order, whoever brought them."""
    chosen = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme != "native"][::4]
    packed = compiled(all_generated([(CHECKED[n][0], replace(CHECKED[n][1], converts_left=False)) for n in chosen]))
    for n, library in zip(chosen, packed, strict=True):
        inputs = CHECKED[n][0].inputs()
        for mine, other in zip(run(*libraries[n], inputs)[0], run(*library, inputs)[0], strict=True):
            assert torch.equal(mine, other)


def infinite(x: torch.Tensor) -> None:
    x[0].view(-1)[5], x[0].view(-1)[77] = inf, nan


def zero_image(x: torch.Tensor) -> None:
    x[1] = 0.0


@pytest.mark.parametrize("edit", [infinite, zero_image])
def test_nan_inf_and_zeros_come_out_where_they_belong(edit, libraries):
    for n, (case, _) in enumerate(CHECKED):
        if case.kernel.scheme == "native" or case.kernel.batch < 2 or n % 2:
            continue
        inputs = case.inputs()
        edit(inputs[0])
        expected = case.expected(inputs)[0]
        found = run(*libraries[n], inputs)[0][0].double()
        assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())
        bound = {"fp16x3": 2.0**-19, "fp16": 2.0**-9}[case.kernel.scheme]
        sizes = evaluate_contraction(case.kernel, [x.abs() for x in inputs])[0]
        close = (found - expected).abs() <= bound * sizes + 1e-30
        assert bool(close[expected.isfinite()].all()), case.name


@pytest.fixture(scope="module")
def guessing():
    """Kernels whose scales of x are guessed: each of 9600 elements, of which runs of 128 are looked at."""
    chosen = [(convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1), RAW),
              (with_epilogue(convolution(2, 2, 12, 5, (20, 40), (2, 2), stride=2)), replace(WIDE_TEAMS, cluster=2)),
              (convolution(2, 1, 8, 9, (20, 60), (3, 3), padding=1), replace(RAW, depth=8, split_k=2)),
              (convolution(2, 1, 24, 9, (20, 20), (1, 1)), RAW)]  # w is a matrix
    with guessed_scales():
        return list(zip([case for case, _ in chosen], compiled(all_generated(chosen)), strict=True))


def only_nan(x: torch.Tensor) -> None:
    x.view(-1)[4000] = nan


# Where Inf was seen nothing else is looked at; NaN alone is found as it is read.
MARKED = EDITS | {"nan": (EDITS["nan"][0], 0), "only nan": (only_nan, 1)}


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("number", range(4))
def test_guessed_scales_are_mended(number, name, guessing):
    case, (library, text) = guessing[number]
    edit: Callable[[torch.Tensor], None] = MARKED[name][0]
    inputs = case.inputs()
    edit(inputs[0])
    (found,), workspace = run(library, text, inputs)
    assert wrong_scales(text, workspace) == MARKED[name][1]
    expected = evaluate_contraction(case.kernel, inputs)[0]
    finite = expected.isfinite()
    assert bool(finite.all()) == ("nan" not in name)
    assert torch.equal(found.double()[~finite].nan_to_num(nan=7.0), expected[~finite].nan_to_num(nan=7.0))
    batch = case.kernel.batch
    for image, right in zip(found.double().reshape(batch, -1), expected.reshape(batch, -1), strict=True):
        kept = right[right.isfinite()]
        error = (image - right)[right.isfinite()].square().mean().sqrt()
        assert error <= 2.0**-21 * kept.square().mean().sqrt()


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
    packed, raw = (Geometry(kernel, tiling) for tiling in (SMALL, RAW))
    assert raw.places["left"][1] == 0 < packed.places["left"][1]
    assert raw.workspace_bytes < packed.workspace_bytes


def test_x_is_packed_for_other_kernels():
    for case, tiling in ((matmul(70, 40, 36), RAW), (FEW, Tiling("mma", 64, 32, 16, 2, converts_left=True))):
        with pytest.raises(ValueError, match="packed"):
            Geometry(case.kernel, tiling)


def test_no_warp_is_two_phases_ahead():
    """Between two steps of a warp there are at most as many as there are stages, or a barrier would be misread."""
    for case in (FEW, MANY, SEVERAL_PIECES, convolution(2, 1, 256, 24, (9, 30), (3, 3))):
        for depth in (8, 16, 32, 64):
            for stages in (2, 3, 4, 6, 8):
                tiling = replace(RAW, depth=depth, stages=stages, columns=24)
                try:
                    layout = Layout(Geometry(case.kernel, tiling), 64)
                except ValueError:
                    continue
                together = layout.geometry.depths if layout.filling.whole_pieces else 1
                assert 1 <= layout.filling.turns <= stages and (layout.filling.turns - 1) * together + 1 <= stages
                assert layout.filling.warps * layout.filling.turns <= 4 * layout.producer_groups
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


def test_the_same_text_each_time():
    kernel = replace(FEW.kernel, tiling=RAW)
    assert generate(kernel, "k").definition == generate(kernel, "k").definition


@on_hopper
def test_on_the_device(tmp_path):
    check_on_the_device([pair for pair in CHECKED if not pair[1].overlap], tmp_path, check)
