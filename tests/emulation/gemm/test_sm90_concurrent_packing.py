"""Core sm90 with concurrent packing: further warpgroups of a block pack x while others multiply."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import DOUBLED, overlapping, softmax
from gemm_matrix import EDITS_WHERE_READ, GuessedScales, Matrix, built, check, one_in
from test_sm90 import NARROW, PINGPONG, SEVERAL_PIECES, SMALL
from test_sm90_converted_in_mainloop import TOTALLED

from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import REGISTERS, Layout
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling

PACKS, WIDE_PINGPONG = replace(SMALL, packs_concurrently=True), replace(PINGPONG, packs_concurrently=True)
FEW = convolution(2, 1, 8, 24, (5, 70), (3, 3), padding=1)
MANY = convolution(2, 1, 64, 24, (5, 70), (3, 3), padding=1)
#: Of 140 channels there are three parts of chunks, the last one of which is not whole.
PARTS = convolution(2, 1, 140, 24, (5, 40), (3, 3), padding=1)
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((case, PACKS) for case in cases()[::2] if case.kernel.axes),
    *((case, WIDE_PINGPONG) for case in cases("fp16")[1::3] if case.kernel.axes),
    (with_epilogue(FEW), replace(PACKS, stages=3)),
    (with_epilogue(FEW), replace(PACKS, rows=128, stages=3, pingpong=2)),
    (FEW, replace(PACKS, depth=8)), (PARTS, PACKS),
    # One warpgroup packs here; with two the cluster would have more threads than the emulation.
    (with_epilogue(PARTS), replace(WIDE_PINGPONG, depth=32, columns=128, cluster=2)),
    (MANY, replace(PACKS, depth=64, rows=128, stages=2)), (MANY, replace(PACKS, depth=32, rows=256, stages=4)),
    (SEVERAL_PIECES, replace(NARROW, packs_concurrently=True, cluster=2)),
    overlapping(convolution(3, 1, 8, 20, (7, 12), (3, 3), padding=1), replace(PACKS, columns=16, pingpong=2)),
    overlapping(with_epilogue(convolution(2, 2, 8, 20, (3, 4, 6), (3, 3, 3), **DOUBLED, scheme="fp16")),
                replace(PACKS, rows=128, pingpong=2, parities=2, promote=0)),
    *((convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, scheme="native", dtype=dtype),
       replace(PACKS, promote=0)) for dtype in ("float16", "bfloat16")),
]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    in_orders = one_in(3)
    not_finite = side_by_side = [n for n, (case, _) in enumerate(CHECKED)
                                 if case.kernel.scheme != "native" and case.kernel.batch > 1 and n % 2 == 0]
    on_device = [n for n, (_, tiling) in enumerate(CHECKED) if not tiling.overlap]


class TestGuessedScales(GuessedScales):
    """The second run packs all of x again."""

    entries = [(convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1), PACKS),
               (with_epilogue(convolution(2, 2, 12, 5, (20, 40), (2, 2), stride=2)), replace(PACKS, cluster=2))]
    edits = EDITS_WHERE_READ


def test_results_are_those_of_operands_packed_before(libraries):
    chosen = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme != "native"][::3]
    before = compiled(all_generated([(CHECKED[n][0], replace(CHECKED[n][1], packs_concurrently=False))
                                     for n in chosen]))
    for n, library in zip(chosen, before, strict=True):
        inputs = CHECKED[n][0].inputs()
        for mine, other in zip(run(*libraries[n], inputs)[0], run(*library, inputs)[0], strict=True):
            assert torch.equal(mine, other)


def test_nobody_reads_what_is_not_packed_yet():
    """A core whose producers do not wait reads what was in memory before."""
    case = with_epilogue(MANY)
    source = all_generated([(case, replace(PACKS, rows=256))])[0]
    waits = "kw_await(left_ready"
    assert source.text.count(waits) == 1
    text = source.text.replace(waits, "(void)(left_ready").replace("+ part, mark);", "+ part + mark);")
    hasty = replace(source, text=text)
    library, = compiled([hasty])
    with pytest.raises(AssertionError):
        check(case, run(*library, case.inputs())[0])


@pytest.mark.parametrize(("channels", "depth"), [(8, 8), (40, 16), (48, 16), (96, 32), (80, 16), (140, 16)])
def test_nothing_is_read_beyond_the_channels(channels, depth):
    """What those who pack ask for ends with the channels, of a part and of chunks asked for together, too."""
    case = convolution(2, 1, channels, 8, (4, 5), (3, 3), padding=1)
    source = all_generated([(case, replace(PACKS, depth=depth))])[0]
    head, body = re.search(r"float case0_left\([^)]*\) {\n", source.text)[0], f"if (c >= {channels}) ++outside;\n"
    counts = 'static int outside = 0;\nextern "C" int outside_reads() { return outside; }\n'
    library, = compiled([replace(source, text=counts + source.text.replace(head, head + body))])
    inputs = case.inputs()
    check(case, run(*library, inputs)[0])
    assert library[0].outside_reads() == 0


def test_totals():
    case, tiling = TOTALLED
    library, text = compiled(all_generated([(case, replace(tiling, converts_left=False, packs_concurrently=True))]))[0]
    inputs = case.inputs()
    for mine, expected in zip(run(library, text, inputs)[0], case.expected(inputs), strict=True):
        assert ((mine.double() - expected).abs() <= 2e-5 * expected.abs().max()).all()


def test_items_are_all_of_x():
    for case in (FEW, MANY, PARTS, SEVERAL_PIECES, convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1)):
        for depth in (16, 32, 48, 64):
            geometry = Geometry(case.kernel, replace(PACKS, depth=depth))
            assert geometry.left_parts * geometry.part_chunks >= geometry.chunks
            assert (geometry.left_parts - 1) * geometry.part_chunks < geometry.chunks
            assert geometry.part_chunks % (depth // CHUNK) == 0 or geometry.left_parts == 1
            assert geometry.places["left_ready"][1] == 4 * (2 + geometry.left_load_chunks)


def test_registers_are_enough_for_all():
    for kernel in (convolution(128, 1, 64, 128, (126, 126), (3, 3), scheme=scheme).kernel
                   for scheme in ("fp16", "fp16x3")):
        found = [t for t in tilings(kernel, "wgmma") if t.packs_concurrently]
        assert found
        for tiling in found:
            layout = Layout(Geometry(kernel, tiling), 64 * 40)
            if layout.moved_registers:
                packers = layout.packing[0] * layout.pack_registers
                used = layout.producer_registers + packers + layout.workers * layout.moved_registers
                assert 128 * used <= REGISTERS and layout.moved_registers >= layout.consumer_need


@pytest.mark.parametrize(("columns", "rows", "warpgroups"), [(8, 64, 3), (16, 64, 4), (32, 64, 1), (32, 128, 2)])
def test_registers_move_between_all(columns, rows, warpgroups):
    """Who ends with fewer registers than it began with gives them back: others wait for them."""
    tiling = Tiling("wgmma", rows, columns, 16, 2, pingpong=warpgroups, packs_concurrently=True)
    layout = Layout(Geometry(replace(MANY.kernel, scheme="fp16"), tiling), 0)
    text = all_generated([(MANY, replace(tiling, promote=0))])[0].text
    begins = REGISTERS // layout.threads // 8 * 8
    ends = {"producers": layout.producer_registers, "who packs x": layout.pack_registers, "worker":
            layout.moved_registers}
    assert re.findall(r"^ +kw_registers_(\w+)<(\d+)>", text, re.M) == [
        ("fewer" if end <= begins else "more", str(end)) for end in ends.values()]
    counts = 1, layout.packing[0], layout.workers
    assert sum(n * end for n, end in zip(counts, ends.values(), strict=True)) <= begins * sum(counts)


@pytest.mark.parametrize("columns", [8, 32])
def test_two_blocks_only_where_those_who_pack_have_registers(columns):
    tiling = Tiling("wgmma", 64, columns, 16, 2)
    assert Layout(Geometry(MANY.kernel, tiling), 0).blocks == 2
    layout = Layout(Geometry(MANY.kernel, replace(tiling, packs_concurrently=True)), 0)
    assert layout.blocks == 1 or layout.pack_registers <= REGISTERS // (2 * layout.threads) // 8 * 8


@needs_nvcc
def test_few_columns_compile_without_trouble(tmp_path):
    kernel = replace(convolution(16, 1, 64, 8, (30, 30), (3, 3), padding=1, scheme="fp16").kernel, scheme="fp16")
    check_compiles([replace(kernel, tiling=Tiling("wgmma", 64, 8, 16, 2, pingpong=warpgroups, packs_concurrently=True))
                    for warpgroups in (1, 3)], "90a", tmp_path)


def test_others_are_packed_before():
    for case, tiling in ((matmul(70, 40, 36), PACKS), (FEW, Tiling("mma", 64, 32, 16, 2, packs_concurrently=True)),
                         (FEW, replace(PACKS, split_k=2)), (FEW, replace(PACKS, converts_left=True))):
        with pytest.raises(ValueError, match=r"x is packed before|no x to pack"):
            Geometry(case.kernel, tiling)


def test_tilings_of_much_x():
    case = convolution(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme="fp16")
    large = case.kernel
    small = convolution(1, 1, 64, 128, (26, 26), (3, 3), padding=1, scheme="fp16").kernel
    found = tilings(large, "wgmma")
    assert any(t.packs_concurrently for t in found[:2]) and any(not t.packs_concurrently for t in found[:2])
    assert not any(t.packs_concurrently for t in tilings(small, "wgmma"))
    assert not any(t.packs_concurrently for t in tilings(softmax(case).kernel, "wgmma"))
    assert prod(small.left_domain) < prod(large.left_domain)


@needs_nvcc
def test_compiles_without_trouble(tmp_path):
    """But for a few numbers of a tile (the next one, say) that ptxas lets wait in memory for want of registers."""
    kernels = [replace(with_epilogue(convolution(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme=scheme)).kernel,
                       scheme=scheme) for scheme in ("fp16", "fp16x3")]
    check_compiles([replace(kernel, tiling=next(t for t in tilings(kernel, "wgmma") if t.packs_concurrently))
                    for kernel in kernels], "90a", tmp_path, spilled=32)
