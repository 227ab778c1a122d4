"""Epilogue store of the core sm90 direct from registers, in whole sectors."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from contraction_cases import ContractionCase, convolution, matmul, with_epilogue
from contraction_tools import all_generated, compiled, run, tilings_of_rows
from gemm_epilogues import DOUBLED, with_two_stores
from gemm_matrix import StoreMatrix, built
from test_store_overlapped import FOUR, HIGH, LOW, THREE

from kernelwright.codegen.cuda.gemm.epilogue.store_from_registers import SECTOR, stores_fragments
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling

BOTH = replace(LOW, parities=2)


def of_fragments(case: ContractionCase, tiling: Tiling) -> tuple[ContractionCase, Tiling]:
    """The tiling with fragments."""
    return case, replace(tiling, from_registers=True)


def with_whole_sectors(case: ContractionCase) -> ContractionCase:
    """`with_two_stores`, the second one from a sector on."""
    case = with_two_stores(case)
    first, second = case.kernel.stores
    moved = replace(second, index=replace(second.index, offset=2 * second.index.offset))
    return replace(case, kernel=replace(case.kernel, stores=(first, moved)))


CHECKED = [
    of_fragments(convolution(2, 1, 16, 20, (154,), (3,)), replace(LOW, cluster=2, pingpong=2)),
    of_fragments(convolution(2, 2, 9, 12, (10, 26), (3, 3)), HIGH),
    of_fragments(with_epilogue(convolution(3, 1, 8, 40, (7, 16), (3, 3), padding=1)), LOW),
    of_fragments(with_epilogue(convolution(3, 2, 8, 40, (7, 8), (3, 3), padding=1, scheme="fp16")), THREE),
    of_fragments(with_whole_sectors(convolution(5, 1, 5, 13, (2, 8), (3, 3), padding=1)), HIGH),
    of_fragments(convolution(2, 1, 8, 12, (9, 64), (3, 3), padding=1), replace(HIGH, depth=8)),
    of_fragments(with_epilogue(convolution(2, 1, 16, 24, (5, 6, 8), (3, 3, 3), padding=(0, 1, 1))), FOUR),
    of_fragments(convolution(1, 1, 20, 9, (30, 34), (4, 3), stride=(2, 1)), THREE),
    *(of_fragments(case, tiling)
      for case in (convolution(2, 1, 16, 24, (7, 12), (3, 3), **DOUBLED),
                   with_epilogue(convolution(2, 2, 8, 20, (3, 4, 8), (3, 3, 3), **DOUBLED, scheme="fp16")),
                   with_whole_sectors(convolution(2, 1, 5, 7, (6, 12), (3, 4), stride=(1, 2), padding=(1, 1),
                                                  transposed=True)))
      for tiling in (BOTH, replace(HIGH, parities=2), replace(FOUR, parities=2))),
    of_fragments(convolution(1, 1, 16, 9, (60,), (3,), **DOUBLED), replace(BOTH, rows=128)),
    of_fragments(with_epilogue(convolution(2, 1, 16, 20, (7, 12), (3, 3), **DOUBLED)),
                 Tiling("wgmma", 64, 24, 16, 4, promote=1, pingpong=2, parities=2, packs_concurrently=True)),
    of_fragments(convolution(3, 1, 8, 20, (7, 16), (3, 3), padding=1),
                 Tiling("wgmma", 64, 24, 8, 4, promote=1, pingpong=2, converts_left=True)),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(StoreMatrix):
    entries = CHECKED
    rescaled = [1, 2, 3, 8, 9, 12]


def test_a_sector_is_stored_by_one_warp_at_once():
    """A kernel that writes which rows of which warp an element comes from, and that to each element once."""
    chosen = [CHECKED[n] for n in (0, 2, 6, 8, 9)]
    sources = []
    for source in all_generated(chosen):
        value = "first_row + i / 2 * 64 + warp * 16 + i % 2 * 8 + 1"  # the first of 8 rows
        before, finish, after = source.text.partition("// Finishes ")
        written = re.sub(r"(out0\[.*\]) = (\w+);", rf"\1 = \1 == 0.0f ? {value} : -1;", after)
        written = re.sub(r"\*reinterpret_cast<float2\*>\((out0 \+ .*)\) = make_float2\(.*\);",
                         rf"{{ for (int v = 0; v < 2; ++v) (\1)[v] = (\1)[v] == 0.0f ? {value} : -1; }}", written)
        assert written != after
        # The rescaling pass has no such rows, and does not run.
        head, mark, rest = written.partition("if (usual) return;")
        sources.append(replace(source, text=before + finish + head + mark + rest))
    for (case, _), library in zip(chosen, compiled(sources), strict=True):
        rows = run(*library, case.inputs())[0][0].reshape(-1, SECTOR)
        assert (rows > 0).all() and (rows == rows[:, :1]).all(), case.name
        assert len(rows.unique()) > 2


def test_lines_take_rows_of_whole_sectors():
    case = convolution(2, 1, 16, 20, (7, 16), (3, 3), padding=1)
    assert Geometry(case.kernel, LOW).extents == (9, 18)
    assert Geometry(case.kernel, replace(LOW, from_registers=True)).extents == (9, 24)
    both = convolution(2, 1, 16, 20, (7, 16), (3, 3), **DOUBLED)
    assert Geometry(both.kernel, BOTH).extents == (8, 17)
    assert Geometry(both.kernel, replace(BOTH, from_registers=True)).extents == (8, 20)


def test_what_is_stored_otherwise_is_refused():
    odd = convolution(2, 1, 8, 8, (8, 15), (3, 3), padding=1)
    apart = convolution(2, 1, 8, 8, (8, 16), (3, 3), **DOUBLED)
    halves = convolution(2, 1, 16, 12, (6, 10), (3, 3), scheme="native", dtype="float16")
    beside = with_two_stores(convolution(5, 1, 5, 13, (2, 8), (3, 3), padding=1))
    for case, phases, possible in ((odd, 1, False), (matmul(64, 64, 64), 1, False), (apart, 1, False),
                                   (apart, 2, True), (halves, 1, False), (beside, 1, False),
                                   (CHECKED[2][0], 1, True)):
        assert stores_fragments(case.kernel, phases) == possible
        if not possible:
            with pytest.raises(ValueError, match="no lines of whole sectors"):
                generate(replace(case.kernel, tiling=replace(LOW, parities=phases, from_registers=True)), "k")
    for tiling in (replace(HIGH, overlap=12), replace(HIGH, sector_aligned=True), replace(LOW, split_k=2),
                   replace(LOW, core="mma")):
        with pytest.raises(ValueError, match="no "):
            generate(replace(CHECKED[2][0].kernel, tiling=replace(tiling, from_registers=True)), "k")


def test_tilings_have_registers_beside_tiles_that_overlap():
    kernel = convolution(128, 1, 64, 64, (128, 128), (3, 3), **DOUBLED, scheme="fp16").kernel
    found = tilings_of_rows(kernel)
    assert any(t.from_registers for t in found[:3]) and any(t.overlap for t in found[:3])
    assert sum(t.parities == 2 and not (t.from_registers or t.overlap) for t in found) == 1
    valid = convolution(128, 1, 64, 64, (128, 128), (3, 3), scheme="fp16").kernel  # lines of 126
    assert not any(t.from_registers for t in tilings(valid, "wgmma"))
