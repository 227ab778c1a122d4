"""Core sm90: accumulation intervals of steps, written out, in rounds, by halves and in a loop, and their promotion."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, matmul, two_phase_cases, with_epilogue
from contraction_tools import all_generated, compiled, run
from gemm_matrix import Matrix, name_of, one_in

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import threads
from kernelwright.codegen.cuda.gemm.mainloop.sm90.accumulation_intervals import interval_numbers, most_intervals
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling

PLAIN = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=1)
TWO, THREE = replace(PLAIN, rows=128, pingpong=2), replace(PLAIN, pingpong=3)
BOTH = replace(PLAIN, parities=2)
FEW = convolution(2, 1, 7, 24, (5, 110), (3, 3), padding=1)  # three runs of three taps
LONG = convolution(1, 1, 40, 20, (6, 9, 5), (3, 3, 3), padding=1)
PHASES = two_phase_cases()


def depth(channels: int) -> ContractionCase:
    """A product of so many channels: as many steps as these have sixteens."""
    return matmul(150, channels, 40, transposed=(False, True))


# By intervals of a tile; both forms of few steps, several steps to an interval, one and two warpgroups to a tile.
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((depth(16 * steps), tiling) for steps in (1, 2, 3, 5) for tiling in (PLAIN, TWO, THREE)),
    (depth(80), replace(PLAIN, cluster=2)), (depth(80), replace(TWO, cluster=2, stages=2)),
    (depth(80), replace(PLAIN, rows=128, promote=2)), (depth(160), replace(TWO, promote=2)),
    (depth(160), replace(PLAIN, promote=3, pingpong=2)), (depth(240), replace(PLAIN, pingpong=2)),
    (depth(80), replace(PLAIN, columns=192, stages=2)),  # one set of registers beside the sums
    *((with_epilogue(FEW), replace(tiling, depth=8)) for tiling in (PLAIN, TWO, THREE, replace(TWO, cluster=2))),
    (FEW, replace(TWO, depth=8, columns=64, stages=6)), (FEW, replace(PLAIN, depth=8, rows=128)),
    (depth(240), replace(TWO, columns=64)), (LONG, replace(TWO, promote=2)), (LONG, replace(TWO, columns=64)),
    (LONG, replace(THREE, stages=2)), (LONG, replace(PLAIN, promote=4, pingpong=2)),
    (PHASES[0], BOTH), (PHASES[6], replace(BOTH, pingpong=2)), (PHASES[9], replace(BOTH, pingpong=2, promote=2)),
    (PHASES[9], BOTH), (PHASES[6], replace(BOTH, columns=64, pingpong=2, stages=2)),
    (PHASES[6], replace(BOTH, depth=8, pingpong=2)), (PHASES[3], replace(BOTH, rows=128, cluster=2)),
]


def layout(case: ContractionCase, tiling: Tiling) -> Layout:
    return Layout(Geometry(case.kernel, tiling), 0)

pytestmark = pytest.mark.usefixtures("few_processors")


@pytest.fixture(scope="module")
def libraries():
    """A library and its source for each: as generated, with no step written out, with one set of registers, and with
    none of its halves added by itself."""
    sources = all_generated(CHECKED)
    for name in ("rounds", "halves", "loop"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threads, "FEW", 0)
            if name != "rounds":
                patch.setattr(threads, "_TURNING_REGISTERS", 1000)
            if name == "loop":
                patch.setattr(Layout, "halves", False)
            for n, (case, tiling) in enumerate(CHECKED):
                made = generate(replace(case.kernel, tiling=tiling), f"{name}{n}").definition
                before = {forms(one.text): one for one in sources[n::len(CHECKED)]}
                sources.append(before.get(forms(made)) or replace(sources[n], name=f"{name}{n}", text=made))
    built = {one.name: (library, one) for library, one in compiled(list({one.name: one for one in sources}.values()),
                                                                        sanitize=False)}
    return [built[one.name] for one in sources]


def forms(text: str) -> str:
    """How a text forms its sums."""
    marks = {"of interval 0": "written out", "part[2]": "rounds", "int HALF": "halves"}
    return next((form for mark, form in marks.items() if mark in text), "loop")


class TestMatrix(Matrix):
    """Each of them in every form."""

    entries = CHECKED * 4
    agreeing = on_device = range(len(CHECKED))
    orders = ("reverse", "7", "2026")
    in_orders = one_in(5)


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=[name_of(*entry) for entry in CHECKED])
def test_no_bit_depends_on_the_form(number, libraries):
    """The same intervals, added in the same order, whether written out, in rounds, by halves or in a loop."""
    case, _ = CHECKED[number]
    found = [run(*libraries[number + i * len(CHECKED)], case.inputs())[0][0] for i in range(4)]
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_all_forms_are_among_them(libraries):
    seen = [forms(one.text) for _, one in libraries]
    count = len(CHECKED)
    assert set(seen[:count]) == {"written out", "rounds", "halves", "loop"}
    assert set(seen[count:2 * count]) == {"rounds", "halves", "loop"}
    assert set(seen[2 * count:3 * count]) == {"halves", "loop"} and set(seen[3 * count:]) == {"loop"}
    assert {layout(*one).parts for one in CHECKED} == {0, 1, 2}
    assert {min(layout(*one).intervals, 5) for one in CHECKED} >= {1, 2, 3, 5}


def test_what_is_promoted_is_the_sum_of_a_stretch(libraries):
    """Three in an interval of its own is added to 2^24 in float32, which rounds to 2^24 + 4; tensor cores, which cut,
    would make 2^24 + 2 of it. The intervals are steps of 16 channels, one product each."""
    for steps in (2, 3, 5):
        for tiling in (PLAIN, TWO, THREE):
            number = CHECKED.index((depth(16 * steps), tiling))
            x, w = CHECKED[number][0].inputs()
            x.zero_(), w.fill_(1.0)
            x[..., 0] = 2.0**24
            x[..., 16 * (steps - 1):16 * (steps - 1) + 3] = 1.0
            for form in range(4):
                found = run(*libraries[number + form * len(CHECKED)], [x, w])[0][0]
                assert bool((found == 2.0**24 + 4).all())
            x[..., 1:4] = 1.0  # in the first one's interval
            x[..., 16 * (steps - 1):] = 0.0
            assert bool((run(*libraries[number], [x, w])[0][0] == 2.0**24 + 2).all())


def test_stretches():
    assert interval_numbers([1] * 5, 2) == [0, 0, 1, 1, 2] and interval_numbers([1] * 5, 2, 1) == [0, 1, 1, 2, 2]
    assert interval_numbers([3, 3, 3], 2) == [0, 1, 2] and interval_numbers([2, 1, 2], 3) == [0, 0, 1]
    assert most_intervals([1] * 3, 2, (0, 1)) == 2 and most_intervals([], 2, (0,)) == 0
    assert most_intervals([1] * 1000, 1, (0,)) == 64


def test_registers_are_for_what_is_added():
    """Nothing beside the sums where nothing is added, two sets where products can run meanwhile and there is room."""
    assert [layout(depth(16 * n), TWO).parts for n in (1, 2, 3, 5)] == [0, 1, 2, 2]
    assert layout(depth(16), TWO).sums == 32 and layout(depth(80), TWO).sums == 3 * 32
    wide = replace(PLAIN, columns=64, depth=8, pingpong=2, rows=128, stages=3)
    assert layout(FEW, wide).sums == 192 and layout(FEW, wide).written_out and layout(FEW, wide).waits == 0
    assert [layout(FEW, replace(wide, rows=64, pingpong=warpgroups)).sums for warpgroups in (3, 4)] == [96, 64]
    assert layout(LONG, replace(wide, depth=16)).halves  # two sets would spill
    assert layout(depth(160), replace(PLAIN, rows=128, promote=2)).parts == 1  # two warpgroups take turns anyway
    for case, tiling in CHECKED:
        assert layout(case, tiling).consumer_need <= 240


SHAPES = [convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1),
          with_epilogue(convolution(128, 1, 16, 64, (128, 128), (3, 3), padding=1)),
          convolution(128, 1, 32, 64, (64, 64), (3, 3), padding=1),
          with_epilogue(convolution(128, 1, 64, 128, (126, 126), (3, 3), padding=1)),
          convolution(128, 1, 64, 64, (64, 64), (3, 3), stride=2, padding=1, output_padding=1, transposed=True)]
COMPILED = [
    (SHAPES[0], Tiling("wgmma", 64, 64, 8, 3, 1, 1, 3)), (SHAPES[0], Tiling("wgmma", 64, 64, 8, 3, 1, 1, 4)),
    (SHAPES[0], Tiling("wgmma", 128, 64, 8, 3, 1, 1, 2)),
    (SHAPES[0], Tiling("wgmma", 128, 64, 8, 6, 1, 1, 2, overlap=12)),
    (SHAPES[1], Tiling("wgmma", 128, 64, 16, 3, 2, 2, 2)), (SHAPES[1], Tiling("wgmma", 128, 128, 16, 3, 1, 1)),
    (SHAPES[2], Tiling("wgmma", 64, 64, 16, 3, 1, 2, 3)), (SHAPES[2], Tiling("wgmma", 128, 64, 32, 3, 2, 1, 2)),
    (SHAPES[3], Tiling("wgmma", 64, 64, 32, 3, 1, 1, 2)), (SHAPES[3], Tiling("wgmma", 64, 128, 16, 4, 1, 2, 2)),
    (SHAPES[3], Tiling("wgmma", 64, 64, 16, 4, 1, 4, 3)),
    (SHAPES[3], Tiling("wgmma", 128, 64, 32, 3, 2, 1, 2)),
    (SHAPES[4], Tiling("wgmma", 64, 64, 32, 4, 2, 1, 2, parities=2)),
]


@needs_nvcc
def test_wgmma_compiles_without_spills_or_serialised_products(tmp_path):
    check_compiles([replace(case.kernel, tiling=tiling) for case, tiling in COMPILED], "90a", tmp_path)
