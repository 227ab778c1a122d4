"""Values of columns that epilogues take from a table: of any types, guarded, more than it holds, on every core."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import run
from gemm_matrix import built, name_of

from kernelwright.codegen.cuda.gemm.epilogue.column_table import MOST_VALUES
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.mainloop.sm90.core import core
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.plan.expressions import Apply, Constant, Guard, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction, Store

WGMMA = Tiling("wgmma", rows=64, columns=16, depth=16, stages=2, promote=2)
MMA = Tiling("mma", rows=64, columns=16, depth=16, stages=2, promote=1)
TYPES = ("bool", "int32", "bfloat16", "float32", "float16", "float32")


def with_columns(case: ContractionCase) -> ContractionCase:
    """A store that needs a bool, an integer, and floats of 16 and 32 bits of each column, one of them the next column's
    where there is one; with those of a reduction, where the kernel has one, more than a table holds."""
    kernel = case.kernel
    rest = [0] * len(kernel.axes)
    place = Index((0, kernel.out_channels, 1, *rest))
    beside = Index((0, kernel.out_channels, 1, *rest), 1)
    mask, whole, narrow, plain = (Load(n, place) for n in (2, 3, 4, 5))
    guarded = Load(6, beside, (Guard(Index((0, 0, 1, *rest), 1), kernel.out_channels),), -1.0)
    last = Load(7, place)
    value = Apply("where", (mask, Apply("mul", (Reduced(0), narrow)), Apply("sub", (Reduced(0), whole))))
    value = Apply("maximum", (Apply("add", (value, plain)), Apply("mul", (Reduced(0), guarded))))
    value = Apply("add", (value, Apply("abs", (Apply("mul", (last, Constant(2.0))),))))
    if kernel.reductions:
        value = Apply("sub", (value, Reduced(1)))
    stores = tuple(Store(s.buffer, s.index, value) for s in kernel.stores)
    shapes = (*case.shapes, *[(kernel.groups * kernel.out_channels,)] * len(TYPES))
    return ContractionCase(f"{case.name}_columns", replace(
        kernel, stores=stores, input_dtypes=(*kernel.input_dtypes, *TYPES)), shapes)


def reduced(case: ContractionCase) -> ContractionCase:
    """The case with the greatest sum plus a value of its column as a reduction over channels."""
    value = Apply("add", (Reduced(0), Load(5, Index((0, case.kernel.out_channels, 1, *[0] * len(case.kernel.axes))))))
    return with_columns(replace(case, name=f"{case.name}_max", kernel=replace(
        case.kernel, reductions=(Reduction("max", value),))))


def without_sums(case: ContractionCase) -> ContractionCase:
    """The case with a store of what a column alone has."""
    value = Apply("add", (Load(5, Index((0, case.kernel.out_channels, 1, *[0] * len(case.kernel.axes)))),
                          Constant(1.0)))
    kernel = replace(case.kernel, stores=tuple(replace(s, expression=value) for s in case.kernel.stores))
    return replace(case, name=f"{case.name}_alone", kernel=kernel)


ROWS = convolution(2, 2, 8, 37, (5, 9), (3, 3), padding=1)
EVEN = convolution(3, 2, 6, 40, (4, 9), (1, 3), padding=(0, 1))
BOTH = convolution(2, 2, 8, 19, (4, 6), (4, 4), stride=2, padding=1, transposed=True)
ONE = convolution(2, 3, 9, 13, (5, 7), (1, 1))
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((with_columns(case), tiling) for case in (ROWS, EVEN) for tiling in (
        WGMMA, replace(WGMMA, rows=128, pingpong=2), replace(WGMMA, rows=128, cluster=2), MMA)),
    (with_columns(BOTH), replace(WGMMA, parities=2)), (with_columns(BOTH), replace(WGMMA, parities=2, pingpong=2)),
    (with_columns(convolution(1, 1, 200, 30, (9,), (1,))), replace(WGMMA, split_k=3)),
    (with_columns(matmul(70, 20, 36, groups=2)), WGMMA),
    *((reduced(ONE), tiling) for tiling in (WGMMA, replace(WGMMA, pingpong=2), MMA)),
    *((without_sums(with_columns(ROWS)), tiling) for tiling in (WGMMA, MMA)),
    (with_columns(replace(ROWS, name="fp16", kernel=replace(ROWS.kernel, scheme="fp16"))), WGMMA),
    (with_columns(convolution(2, 1, 40, 70, (9, 9), (1, 1))),
     Tiling("mma", rows=64, columns=128, depth=32, stages=3, promote=1, converts_right=True)),
]

libraries = built(CHECKED, sanitize=False)


def made_inputs(case: ContractionCase) -> list[torch.Tensor]:
    """Inputs with integers of either sign, and bools of both kinds."""
    inputs = case.inputs()
    inputs[2] = case.inputs()[5] > 0
    inputs[3] = (3 * case.inputs()[7]).to(torch.int32)
    return inputs


@pytest.mark.parametrize("order", ["", "reverse", "4711"])
@pytest.mark.parametrize("number", range(len(CHECKED)), ids=[name_of(*entry) for entry in CHECKED])
@pytest.mark.usefixtures("few_processors")
def test_outputs_are_those_of_float64(number, order, libraries, monkeypatch):
    if order:
        monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    case = CHECKED[number][0]
    inputs = made_inputs(case)
    found, _ = run(*libraries[number], inputs)
    single = evaluate_contraction(case.kernel, inputs, torch.float32)
    bound = {"fp16x3": 2.0**-18, "fp16": 2.0**-7}[case.kernel.scheme]
    for mine, expected, other in zip(found, case.expected(inputs), single, strict=True):
        scale = expected.abs().mean()
        assert (other.double() - expected).abs().max() < 2.0**-18 * scale
        assert (mine.double() - expected).abs().max() < bound * scale


def test_a_table_holds_no_more_than_its_bound():
    for case, tiling in CHECKED:
        finish = epilogue(Geometry(case.kernel, tiling), "k")
        # Where channels are neighbours a thread stays on its columns: there is no table.
        assert (finish.column_floats > 0) == bool(case.kernel.axes)
        assert finish.column_floats <= MOST_VALUES * (tiling.columns + 1)
        assert finish.column_floats % 4 == finish.floats % 4 == 0


def test_subtiles_beyond_48_kilobytes_are_asked_for():
    """Of reductions a subtile holds all channels: that of the kernel that adds parts exceeds what it has unasked."""
    case = matmul(64, 2000, 250)
    wide = replace(case.kernel, reductions=(Reduction("max", Reduced(0)),))
    for kernel, asks in ((wide, True), (case.kernel, False)):
        tiling = replace(WGMMA, columns=256, promote=0, split_k=4)
        geometry = Geometry(replace(kernel, tiling=tiling), tiling)
        launches = core(geometry, epilogue(geometry, "k"), "k").launches
        assert any("cudaFuncSetAttribute(k_merge" in line for line in launches) == asks
