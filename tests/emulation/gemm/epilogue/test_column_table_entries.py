"""Values of entries of the batch that epilogues take from a table of columns: statistics of a norm, say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import pooled, reducing
from gemm_matrix import Matrix, built, name_of

from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Apply, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.reading.access import strides_of

WGMMA = Tiling("wgmma", rows=64, columns=16, depth=16, stages=3, promote=2)
BOTH = replace(WGMMA, parities=2, stages=2)


def normalised(case: ContractionCase) -> ContractionCase:
    """What the case stores less a value of (n, g, o), times another one of these and one of (g, o)."""
    kernel = case.kernel
    own = Index((*strides_of(kernel.domain[:3]), *[0] * len(kernel.axes)))
    column = Index((0, kernel.out_channels, 1, *[0] * len(kernel.axes)))
    first = len(kernel.input_dtypes)
    mean, scale, weight = Load(first, own), Load(first + 1, own), Load(first + 2, column)

    def norm(store: Store) -> Store:
        value = Apply("mul", (Apply("mul", (Apply("sub", (store.expression, mean)), scale)), weight))
        return replace(store, expression=value)

    changed = replace(kernel, stores=tuple(map(norm, kernel.stores)),
                      input_dtypes=(*kernel.input_dtypes, *["float32"] * 3))
    statistics = kernel.domain[:3]
    return ContractionCase(case.name + "_normalised", changed,
                           (*case.shapes, statistics, statistics, (kernel.groups, kernel.out_channels)))


IMAGE = convolution(4, 2, 8, 20, (7, 9), (3, 3), padding=1)
EVEN = convolution(3, 1, 8, 20, (8, 16), (3, 3), padding=1)
LINES = convolution(3, 1, 16, 12, (5, 32), (3, 3), padding=1, scheme="fp16")
TRANSPOSED = convolution(3, 2, 8, 19, (6, 10), (4, 4), stride=2, padding=1, transposed=True)
LINES_OF_BOTH = convolution(3, 1, 16, 12, (6, 16), (4, 4), stride=2, padding=1, transposed=True, scheme="fp16")
WIDE = convolution(3, 1, 16, 9, (9, 11), (3, 3), padding=1)
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (normalised(IMAGE), WGMMA), (normalised(IMAGE), replace(WGMMA, pingpong=2)),
    (normalised(IMAGE), replace(WGMMA, split_k=2)), (normalised(IMAGE), replace(WGMMA, cluster=2)),
    (normalised(WIDE), replace(WGMMA, rows=128, pingpong=2)),
    (normalised(WIDE), replace(WGMMA, rows=128)), (normalised(EVEN), WGMMA),
    (normalised(TRANSPOSED), BOTH), (normalised(TRANSPOSED), replace(BOTH, pingpong=2)),
    (normalised(LINES), replace(WGMMA, promote=0, from_registers=True)),
    (normalised(LINES_OF_BOTH), replace(BOTH, promote=0, from_registers=True, pingpong=2)),
    (normalised(pooled(EVEN, 2)), WGMMA), (normalised(pooled(LINES_OF_BOTH, 4)), replace(BOTH, promote=0)),
    (normalised(reducing(WIDE, (Reduction("max", Reduced(0)),), ((True, Apply("sub", (Reduced(0), Reduced(1)))),))),
     WGMMA),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


def check(case: ContractionCase, found: list[torch.Tensor], inputs: list[torch.Tensor] | None = None) -> None:
    bound = {"fp16x3": 2.0**-18, "fp16": 2.0**-8}[case.kernel.scheme]
    for mine, expected in zip(found, case.expected(inputs or case.inputs()), strict=True):
        assert (mine.double() - expected).abs().max() < bound * expected.abs().max()


class TestMatrix(Matrix):
    entries = CHECKED
    check = staticmethod(check)
    orders = ("reverse", "4711")


@pytest.mark.parametrize(("case", "tiling"), CHECKED, ids=[name_of(*entry) for entry in CHECKED])
def test_each_entry_has_its_own(case, tiling):
    (source,) = all_generated([(case, tiling)])
    assert "first_n" in source.text and epilogue(Geometry(case.kernel, tiling), "k").entry_rows >= tiling.rows


@pytest.mark.parametrize(("case", "tiling"), [
    (normalised(convolution(5, 1, 8, 20, (4, 9), (3, 3), padding=1)), replace(WGMMA, rows=128)),
    (normalised(convolution(1, 1, 8, 20, (9, 19), (3, 3), padding=1)), WGMMA),
    (normalised(IMAGE), Tiling("mma", rows=64, columns=32, depth=16, stages=2, promote=1))],
    ids=["small", "one", "mma"])
def test_others_are_loaded_where_they_are_needed(case, tiling):
    """Entries of fewer rows than a tile has, one entry alone, and the portable core."""
    (made,) = compiled(all_generated([(case, tiling)]))
    assert "first_n" not in made[1].text
    inputs = case.inputs()
    (mine,), (expected,) = run(*made, inputs)[0], case.expected(inputs)
    assert (mine.double() - expected).abs().max() < 2.0**-18 * expected.abs().max()


def test_no_load_of_statistics_is_left_in_the_epilogue():
    """What is loaded of a norm is in the function that fills the table."""
    (made,) = all_generated([CHECKED[9]])
    finish = made.text[made.text.index("_finish("):]
    finish = finish[:finish.index("if (fast) return;")]
    assert "in2[" not in finish and "in3[" not in finish and "__int_as_float" not in finish


@needs_nvcc
def test_compiles(tmp_path):
    check_compiles([replace(case.kernel, tiling=tiling) for case, tiling in CHECKED[1::4]], "90a", tmp_path)
