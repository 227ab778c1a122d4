"""Epilogue store of the core sm90 whose warps begin at whole sectors."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest
from contraction_cases import ContractionCase, convolution, matmul, with_epilogue
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import DOUBLED, with_two_stores
from gemm_matrix import StoreMatrix, built
from test_store_overlapped import FOUR, HIGH, LINES, LOW, PLANES, THREE

from kernelwright.codegen.cuda.gemm.epilogue.store_aligned import stores_aligned
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Apply, Index, Load, Reduced

ODD = {"stride": 2, "padding": 1, "transposed": True}  # outputs of odd lengths


def aligned(case: ContractionCase, tiling: Tiling) -> tuple[ContractionCase, Tiling]:
    """The tiling with aligned warps."""
    return case, replace(tiling, sector_aligned=True)


def with_lines(case: ContractionCase) -> ContractionCase:
    """A sum plus what each line of the second axis has: it moves along an image in no equal steps."""
    kernel, store = case.kernel, case.kernel.stores[0]
    load = Load(2, Index((0, 0, 0, *[0] * (len(kernel.axes) - 2), 1, 0)))
    changed = replace(kernel, stores=(replace(store, expression=Apply("add", (Reduced(0), load))),),
                      input_dtypes=(*kernel.input_dtypes, "float32"))
    return ContractionCase(case.name + "_lines", changed, (*case.shapes, (kernel.domain[-2],)))


CHECKED = [
    aligned(convolution(2, 1, 16, 20, (151,), (3,)), replace(LOW, cluster=2, pingpong=2)),
    aligned(convolution(2, 2, 9, 12, (11, 23), (3, 3)), HIGH),  # lines of 21, images of 189
    aligned(with_epilogue(convolution(3, 1, 8, 40, (7, 13), (3, 3), padding=1)), LOW),
    aligned(with_epilogue(convolution(3, 2, 8, 40, (7, 12), (3, 3), padding=1, scheme="fp16")), THREE),
    aligned(with_two_stores(convolution(5, 1, 5, 13, (3, 5), (3, 3), padding=1)), HIGH),
    aligned(with_two_stores(convolution(5, 1, 5, 13, (2, 6), (3, 3), padding=1)), HIGH),
    aligned(convolution(2, 1, 8, 12, (9, 60), (3, 3), padding=1), replace(HIGH, depth=8)),
    aligned(LINES, HIGH), aligned(with_epilogue(PLANES), FOUR), aligned(with_lines(LINES), LOW),
    aligned(convolution(11, 1, 16, 8, (5, 1), (3, 3), padding=1), replace(LOW, pingpong=2)),
    aligned(convolution(1, 1, 20, 9, (30, 34), (4, 3), stride=(2, 1)), THREE),
    *(aligned(case, tiling)
      for case in (convolution(2, 1, 16, 24, (7, 12), (3, 3), **ODD),
                   with_epilogue(convolution(2, 2, 8, 20, (3, 4, 6), (3, 3, 3), **ODD, scheme="fp16")),
                   with_epilogue(convolution(2, 1, 8, 20, (9, 70), (3, 4), **DOUBLED)),
                   with_two_stores(convolution(2, 1, 5, 7, (6, 12), (3, 4), stride=(1, 2), padding=(1, 1),
                                               transposed=True)))
      for tiling in (replace(LOW, parities=2), replace(HIGH, parities=2), replace(FOUR, parities=2))),
    aligned(convolution(1, 1, 16, 9, (61,), (3,), **ODD), replace(LOW, parities=2)),
    aligned(convolution(2, 1, 16, 12, (6, 11), (3, 3), scheme="native", dtype="float16"), replace(HIGH, promote=0)),
    aligned(convolution(2, 1, 16, 12, (6, 11), (3, 3), **ODD, scheme="native", dtype="bfloat16"),
            replace(HIGH, promote=0, parities=2)),
    aligned(convolution(3, 1, 8, 20, (7, 13), (3, 3), padding=1),
            Tiling("wgmma", 64, 24, 8, 4, promote=1, pingpong=2, converts_left=True)),
    aligned(with_epilogue(convolution(2, 1, 16, 20, (7, 13), (3, 3), **ODD)),
            Tiling("wgmma", 64, 24, 16, 4, promote=1, pingpong=2, parities=2, packs_concurrently=True)),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(StoreMatrix):
    entries = CHECKED
    rescaled = [2, 3, 7, 12, 13, 16]


def test_whole_sectors_are_stored_at_once():
    """A kernel that writes which store of which tile an element comes from, and that to each element once: but for the
    ends of what a tile has of a run, the elements of a sector come from one store."""
    chosen = [CHECKED[n] for n in (0, 1, 7, 12, 14, 24)]
    sources = []
    for source in all_generated(chosen):
        value = "first_row * 64 + k + 1"
        before, finish, after = source.text.partition("// Finishes ")
        written = re.sub(r"(out0\[.*\]) = (\w+);", rf"\1 = \1 == 0.0f ? {value} : -1;", after)
        written = re.sub(r"\*reinterpret_cast<float2\*>\((out0 \+ .*)\) = make_float2\(.*\);",
                         rf"{{ for (int v = 0; v < 2; ++v) (\1)[v] = (\1)[v] == 0.0f ? {value} : -1; }}", written)
        written = before + finish + written
        assert written != source.text
        sources.append(replace(source, text=written))
    for (case, tiling), library in zip(chosen, compiled(sources), strict=True):
        stores = run(*library, case.inputs())[0][0]
        assert (stores > 0).all(), case.name
        flat = stores.reshape(-1)
        whole = flat[:flat.numel() // 8 * 8].reshape(-1, 8)
        cut = (whole != whole[:, :1]).any(1).sum()
        # Ends: of runs, and of tiles in each column.
        run_axes = case.kernel.domain[-1 if tiling.parities == 2 else 3:]
        ends = ((flat[1:] - 1) // 64 != (flat[:-1] - 1) // 64).sum() + stores.numel() // prod(run_axes)
        assert cut <= ends, case.name
        assert len(flat.unique()) > 2


def test_what_is_stored_otherwise_is_refused():
    planes = convolution(9, 1, 16, 8, (4, 3, 3), (3, 3, 3), padding=1)
    strided = convolution(2, 1, 8, 8, (8, 16), (3, 3), padding=1, stride=2)
    apart = convolution(2, 1, 8, 8, (8, 16), (3, 3), **DOUBLED)
    for case, phases, possible in ((LINES, 1, True), (matmul(64, 64, 64), 1, False), (planes, 1, True),
                                   (strided, 1, True), (apart, 1, False), (apart, 2, True)):
        tiling = replace(LOW, parities=phases)
        assert stores_aligned(Geometry(case.kernel, tiling)) == possible
        if not possible:
            with pytest.raises(ValueError, match="no warps that begin"):
                generate(replace(case.kernel, tiling=replace(tiling, sector_aligned=True)), "k")
    for tiling in (replace(HIGH, overlap=12), replace(HIGH, pingpong=1), replace(LOW, split_k=2),
                   replace(HIGH, rows=256),
                   replace(LOW, core="mma")):
        with pytest.raises(ValueError, match="no "):
            generate(replace(LINES.kernel, tiling=replace(tiling, sector_aligned=True)), "k")


def test_tilings_are_aligned_where_results_lie_beside_sectors():
    odd = convolution(16, 1, 64, 128, (24, 48, 48), (3, 3, 3), **ODD, scheme="fp16").kernel
    found = tilings(odd, "wgmma")
    assert {tiling.sector_aligned for tiling in found[:3]} == {True, False}
    assert not any(tiling.sector_aligned for tiling in tilings(matmul(4096, 64, 64).kernel, "wgmma"))
