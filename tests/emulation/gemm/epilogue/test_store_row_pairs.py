"""Epilogue store through subtiles of which a thread takes two neighbouring rows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from contraction_cases import ContractionCase, convolution, matmul, with_epilogue
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import with_two_stores
from gemm_matrix import StoreMatrix, built

from kernelwright.codegen.cuda.gemm.epilogue.store import in_pairs
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Index

LOW = Tiling("wgmma", rows=64, columns=16, depth=16, stages=2, promote=1)
HIGH = Tiling("wgmma", rows=128, columns=64, depth=16, stages=3, pingpong=2, promote=2)
PORTABLE = Tiling("mma", rows=64, columns=32, depth=16, stages=2, promote=1)
#: Columns that threads do not share evenly, and 8 of them: half of the threads have none.
UNEVEN, FEW = replace(LOW, columns=24), replace(LOW, columns=8)
LINES = convolution(3, 1, 8, 20, (9, 14), (3, 3), padding=1)
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (LINES, LOW), (with_epilogue(LINES), UNEVEN), (with_two_stores(LINES), HIGH), (with_epilogue(LINES), PORTABLE),
    (convolution(2, 1, 16, 20, (150,), (3,)), replace(LOW, cluster=2, pingpong=2)),
    (with_epilogue(convolution(2, 2, 9, 12, (10, 22), (3, 3))), FEW),
    (convolution(2, 1, 16, 24, (5, 6, 6), (3, 3, 3), padding=(0, 1, 1)), replace(LOW, split_k=2)),
    (with_two_stores(convolution(3, 2, 8, 40, (7, 12), (3, 3), padding=1, scheme="fp16")), replace(HIGH, promote=0)),
    (with_epilogue(convolution(2, 1, 16, 24, (7, 12), (3, 3), stride=(2, 1), padding=1, transposed=True)), LOW),
    (convolution(2, 1, 20, 9, (30, 34), (4, 3), stride=(2, 1)), replace(HIGH, columns=16)),
    (with_epilogue(convolution(3, 1, 8, 130, (7, 12), (3, 3), padding=1, scheme="fp16")),
     replace(HIGH, columns=192, pingpong=1, promote=0)),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(StoreMatrix):
    entries = CHECKED
    rescaled = [1, 2, 5, 7, 8]
    keeps_what_is_before = True


@pytest.mark.parametrize("number", range(len(CHECKED)))
def test_a_thread_stores_two_rows_at_once(number):
    (case, tiling), (source,) = CHECKED[number], all_generated([CHECKED[number]])
    assert in_pairs(Geometry(case.kernel, tiling)) and "float2*>(out0" in source.text


def test_each_element_is_written_once():
    """A kernel that counts in place of its results."""
    chosen, sources = [CHECKED[n] for n in (0, 4, 8, 9)], []
    for source in all_generated(chosen):
        written = re.sub(r"\*reinterpret_cast<float2\*>\((out0 \+ .*)\) = make_float2\(.*\);",
                         r"{ (\1)[0] += 1.0f, (\1)[1] += 1.0f; }", source.text)
        assert written != source.text
        sources.append(replace(source, text=written))
    for (case, _), library in zip(chosen, compiled(sources), strict=True):
        counts = run(*library, case.inputs())[0][0]
        assert (counts == counts.view(-1)[0]).all() and counts.isfinite().all(), case.name


def test_rows_that_are_no_pairs_are_taken_by_themselves():
    store = LINES.kernel.stores[0]
    shifted = replace(LINES.kernel, stores=(replace(store, index=Index(store.index.strides, 1)),))
    apart = replace(LINES.kernel, stores=(replace(store, index=Index((*store.index.strides[:-1], 2), 0)),))
    odd = convolution(3, 1, 8, 20, (9, 15), (3, 3), padding=1).kernel  # 15 positions, and 17 rows
    rows = convolution(3, 1, 8, 20, (9, 15), (3, 4), padding=(1, 1)).kernel  # 14 positions, and 17 rows
    narrow = convolution(3, 1, 8, 20, (9, 14), (3, 3), padding=1, scheme="native", dtype="float16").kernel
    doubled = convolution(2, 1, 8, 8, (6, 6), (4, 4), stride=2, padding=1, transposed=True).kernel
    for kernel in (shifted, apart, odd, rows, narrow, doubled, matmul(64, 64, 64).kernel):
        assert not in_pairs(Geometry(kernel, replace(LOW, promote=0)))
        assert "float2*>(out0" not in epilogue(Geometry(kernel, replace(LOW, promote=0)), "k").definitions
