"""Epilogue store of the core sm90 whose tiles overlap, so that each stores whole sectors."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest
from contraction_cases import convolution, matmul, with_epilogue
from contraction_tools import all_generated, compiled, run, tilings_of_rows
from gemm_epilogues import DOUBLED, overlapping, with_two_stores
from gemm_matrix import StoreMatrix, built

from kernelwright.codegen.cuda.gemm.epilogue.store_overlapped import SECTOR, stores_densely
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling

LOW = Tiling("wgmma", rows=64, columns=16, depth=16, stages=2, promote=1)
HIGH = Tiling("wgmma", rows=128, columns=32, depth=16, stages=3, pingpong=2, promote=2)
THREE = replace(HIGH, pingpong=3, columns=24, promote=0)
FOUR = replace(LOW, pingpong=4, stages=3)


LINES = convolution(3, 1, 8, 20, (9, 14), (3, 3), padding=1)  # images of 126 positions: 6 modulo 8, 2 modulo 4
PLANES = convolution(2, 1, 16, 24, (5, 6, 6), (3, 3, 3), padding=(0, 1, 1))  # planes of 36 positions
CHECKED = [
    overlapping(convolution(2, 1, 16, 20, (150,), (3,)), replace(LOW, cluster=2, pingpong=2)),
    overlapping(convolution(2, 2, 9, 12, (10, 22), (3, 3)), HIGH),  # images of 160 positions
    overlapping(with_epilogue(convolution(3, 1, 8, 40, (7, 12), (3, 3), padding=1)), LOW),  # of 84
    overlapping(with_epilogue(convolution(3, 2, 8, 40, (7, 12), (3, 3), padding=1, scheme="fp16")), THREE),
    overlapping(with_two_stores(convolution(5, 1, 5, 13, (2, 6), (3, 3), padding=1)), HIGH),  # of 12
    overlapping(convolution(2, 1, 8, 12, (9, 60), (3, 3), padding=1), replace(HIGH, depth=8)),
    overlapping(PLANES, HIGH), overlapping(with_epilogue(PLANES), FOUR),
    # Lines so short that a sector touches several, and the rows between them.
    *(overlapping(case, replace(LOW, pingpong=2)) for case in (
        convolution(11, 1, 16, 8, (6, 3), (3, 2), padding=(1, 0)), convolution(11, 1, 16, 8, (4, 6), (1, 4)),
        convolution(16, 1, 16, 8, (4, 8), (1, 4)), convolution(16, 1, 16, 8, (8, 1), (3, 3), padding=1))),
    overlapping(convolution(1, 1, 20, 9, (30, 34), (4, 3), stride=(2, 1)), THREE),
    *(overlapping(case, tiling)
      for case in (convolution(2, 1, 16, 24, (7, 12), (3, 3), **DOUBLED),
                   with_epilogue(convolution(2, 2, 8, 20, (3, 4, 6), (3, 3, 3), **DOUBLED, scheme="fp16")),
                   with_two_stores(convolution(2, 1, 5, 7, (6, 12), (3, 4), stride=(1, 2), padding=(1, 1),
                                               transposed=True)))
      for tiling in (replace(LOW, parities=2), replace(HIGH, parities=2), replace(FOUR, parities=2))),
    overlapping(convolution(2, 1, 16, 12, (6, 10), (3, 3), scheme="native", dtype="float16"), replace(HIGH, promote=0)),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(StoreMatrix):
    entries = CHECKED
    rescaled = [2, 3, 6, 10, 13]
    keeps_what_is_before = True


def test_each_sector_is_stored_by_one_tile():
    """A kernel that writes its tile's first row in place of its results, and to each element once."""
    chosen = [CHECKED[n] for n in (0, 1, 6, 12, 13)]
    sources, whole = [], 0
    for source in all_generated(chosen):
        written = re.sub(r"kw_write4\((out0 \+ .*), (y\d+)\);",
                         r"{ for (int v = 0; v < 4; ++v) (\1)[v] = (\1)[v] == 0.0f ? first_row + 1 : -1; }",
                         source.text)
        assert written != source.text
        sources.append(replace(source, text=written))
    for (case, _), library in zip(chosen, compiled(sources), strict=True):
        tiles = run(*library, case.inputs())[0][0]
        assert (tiles > 0).all(), case.name
        lines = case.kernel.axes[-1 if case.kernel.axes[-1].out_stride == 2 else -2:]
        if prod(axis.out_size for axis in lines) % SECTOR == 0:
            sectors = tiles.reshape(-1, SECTOR)
            assert (sectors == sectors[:, :1]).all(), case.name
            whole += 1
        assert len(tiles.unique()) > 2
    assert whole >= 2


def test_what_is_stored_otherwise_is_refused():
    planes = convolution(9, 1, 16, 8, (4, 3, 3), (3, 3, 3), padding=1)  # of 9 positions
    lines = convolution(7, 1, 8, 8, (2, 3, 5), (3, 3, 4), stride=(1, 1, 2), padding=1, transposed=True)
    strided = convolution(2, 1, 8, 8, (8, 16), (3, 3), padding=1, stride=2)
    huge = convolution(1, 1, 1, 1, (65536, 32768), (3, 3), padding=1)
    for case, phases, dense in ((LINES, 1, False), (matmul(64, 64, 64), 1, False), (planes, 1, False),
                                (lines, 2, False), (huge, 1, False), (strided, 1, True)):
        tiling = replace(LOW, parities=phases)
        assert stores_densely(Geometry(case.kernel, tiling)) == dense
        if not dense and case is not huge:
            with pytest.raises(ValueError, match="no tiles that overlap"):
                generate(replace(case.kernel, tiling=replace(tiling, overlap=12)), "k")
    dense = CHECKED[1][0].kernel
    for tiling in (replace(HIGH, overlap=4), replace(HIGH, overlap=14), replace(HIGH, pingpong=1, overlap=12),
                   replace(LOW, split_k=2, overlap=12), replace(HIGH, rows=256, overlap=12)):
        with pytest.raises(ValueError, match="no tiles"):
            generate(replace(dense, tiling=tiling), "k")


def test_tilings_overlap_where_results_are_most_of_the_work():
    kernel = convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1, scheme="fp16").kernel
    found = tilings_of_rows(kernel)
    assert found[0].overlap and next(t.pingpong for t in found if t.overlap and not t.converts_left) == 3
    odd = convolution(128, 1, 8, 64, (255, 257), (3, 3), padding=1, scheme="fp16").kernel
    assert not any(tiling.overlap for tiling in tilings(odd, "wgmma"))
