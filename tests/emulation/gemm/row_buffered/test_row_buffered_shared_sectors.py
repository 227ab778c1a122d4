"""Core row_buffered: sectors of memory that lines share are stored once."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest
import torch
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import Source, all_generated, compiled, generated, on_hopper, run
from gemm_epilogues import every, moments
from gemm_matrix import check, check_on_the_device
from test_row_buffered import IMAGE, LONG, MANY, ROUNDED, tiling

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.row_buffered import problem
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.search import row_buffered_tilings
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.describe import tiling_words


def aligned(case: ContractionCase, *arguments: int, **options: int) -> tuple[ContractionCase, Tiling]:
    """A tiling that stores what two lines share of a sector once."""
    return case, replace(tiling(case, *arguments, **options), sector_aligned=True)


#: Lines of 18 to 38 positions; factors of channels; several blocks of channels.
SHARED = convolution(3, 1, 6, 64, (17, 28), (3, 3), padding=(1, 0))
CASES = [aligned(with_epilogue(IMAGE), 24), aligned(SHARED, 32, 4), aligned(with_epilogue(SHARED), 32, 3, slots=9),
         aligned(SHARED, 32, 1), aligned(with_epilogue(MANY), 24, 2), aligned(ROUNDED, 40, 2),
         aligned(with_epilogue(convolution(2, 1, 16, 130, (11, 22), (3, 3), scheme="fp16")), 24, 6),
         aligned(convolution(2, 1, 4, 64, (5, 9, 22), (2, 3, 3)), 24, 3)]

#: Lines of two and three work tiles, the last of which has three sectors and a part, or two; blocks of channels.
LINES = [convolution(2, 1, 6, 64, (9, width + 2), (3, 3)) for width in (62, 58, 66)]
CASES += [aligned(LINES[0], 32, 3), aligned(with_epilogue(LINES[0]), 32, 2), aligned(LINES[1], 32, 4),
          aligned(LINES[2], 24, 1), aligned(LINES[2], 24, 3), aligned(with_epilogue(LINES[2]), 24, 5),
          aligned(convolution(1, 1, 16, 130, (11, 46), (3, 3), scheme="fp16"), 24, 3),
          aligned(with_epilogue(convolution(1, 1, 16, 100, (7, 46), (3, 3), scheme="fp16")), 24, 4)]
#: Two and four stacked lines: of as many lines, and of fewer in the last work tile of an image; ragged channels.
SHORT, FEW = (convolution(3, 1, 5, channels, (17, 28), (3, 3), padding=(1, 0)) for channels in (30, 14))
CASES += [aligned(SHORT, 32, warpgroups, columns=32) for warpgroups in (1, 3)]
CASES += [aligned(case, 32, warpgroups, columns=16, slots=9) for case, warpgroups in ((FEW, 1), (FEW, 2), (SHORT, 2))]
CASES += [aligned(with_epilogue(SHORT), 32, 3, columns=32), aligned(with_epilogue(IMAGE), 24, 2, columns=32),
          aligned(with_epilogue(SHARED), 32, 4, columns=16, slots=8),
          aligned(convolution(2, 1, 16, 16, (14, 24), (3, 3), scheme="fp16"), 24, 3, columns=16, slots=9),
          aligned(convolution(2, 1, 4, 32, (5, 9, 22), (2, 3, 3)), 24, 3, columns=32)]


#: Those in strips of whole images, too: of each kind of lines, stacks and blocks of channels. Whole images of most
#: others are `watched` below.
WHOLE = CASES[::2]
BOTH = [*CASES, *WHOLE]


def all_strips() -> list[Source]:
    """The texts of all cases for a device of many multiprocessors, and of WHOLE for one of few."""
    texts = [generated(case.kernel, made, f"short{n}") for n, (case, made) in enumerate(CASES)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "_PROCESSORS", 1)
        return texts + [generated(case.kernel, made, f"whole{n}") for n, (case, made) in enumerate(WHOLE)]


@pytest.fixture(scope="module")
def libraries():
    return compiled(all_strips())


@pytest.fixture(scope="module")
def results(libraries):
    """What each gives: on one multiprocessor and on many in turn."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for number, ((case, _), library) in enumerate(zip(BOTH, libraries, strict=True)):
            patch.setenv("KERNELWRIGHT_EMULATION_PROCESSORS", ("1", "132")[number % 2])
            found.append(run(*library, case.inputs())[0])
    return found


def test_against_float64(results):
    for (case, _), found in zip(BOTH, results, strict=True):
        check(case, found)


@pytest.mark.parametrize(("order", "strips"), [("reverse", "short"), ("7", "whole")])
def test_the_order_of_threads_changes_nothing(order, strips, libraries, results, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_PROCESSORS", "2")
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    half = slice(None, len(CASES)) if strips == "short" else slice(len(CASES), None)
    for (case, _), library, expected in zip(BOTH[half], libraries[half], results[half], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(run(*library, case.inputs())[0], expected, strict=True)), case.name


def test_the_same_bits_as_without(results):
    """Sums are the same, wherever and by whom they are stored."""
    apart = compiled(all_generated([(case, replace(made, sector_aligned=False)) for case, made in CASES]))
    expected = [run(*library, case.inputs())[0][0] for (case, _), library in zip(CASES, apart, strict=True)]
    for found, wanted in zip(results, [*expected, *expected[::2]], strict=True):
        assert found[0].equal(wanted)


def watched(case: ContractionCase, made: Source) -> Source:
    """The text with an end where two warps store parts of a sector that lies within lines of one channel."""
    plane = prod(case.kernel.domain[-2:])
    sectors = prod(case.kernel.domain) // SECTOR + 1
    call = f"store_{made.name}(out0, "
    text, found = re.subn(r"\*(reinterpret_cast<float2\*>\(out0 \+ .*\)) =\s([^;]*);", rf"{call}\1, \2);",
                          made.text.replace("__stcs(", call))
    assert found + made.text.count("__stcs(") == 1
    return replace(made, text=f"""
static int owners_{made.name}[{sectors}];
static void store_{made.name}(const float* out, float2* to, float2 value) {{
  const long long sector = (reinterpret_cast<const float*>(to) - out) / {SECTOR}, first = sector * {SECTOR};
  const int owner = 1 + blockIdx.x * 32 + threadIdx.x / 32, before = owners_{made.name}[sector];
  if (first / {plane} == (first + {SECTOR - 1}) / {plane} && before && before != owner)
    kw_emulation::fail("a sector in two parts");
  owners_{made.name}[sector] = owner;
  *to = value;
}}
{text}""")


def test_no_two_warps_store_parts_of_a_sector():
    """Of images in one strip; without ends they do, where consumer warpgroups do not have all lines of a channel."""
    chosen = [(case, made) for case, made in CASES if made.pingpong > RowBuffered(case.kernel, made).channel_blocks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "_PROCESSORS", 1)
        assert all(RowBuffered(case.kernel, made).parts == 1 for case, made in chosen)
        texts = [watched(case, generated(case.kernel, replace(made, sector_aligned=once),
                                         f"once{n}" if once else f"twice{n}"))
                 for once in (True, False) for n, (case, made) in enumerate(chosen) if once or n % 3 == 0]
    built = compiled(texts)
    for (case, _), once in zip(chosen, built, strict=False):
        check(case, run(*once, case.inputs())[0])
    for (case, _), twice in zip(chosen[::3], built[len(chosen):], strict=True):
        with pytest.raises(AssertionError, match="a sector in two parts"):
            run(*twice, case.inputs())


@on_hopper
def test_on_the_device(tmp_path):
    check_on_the_device(CASES, tmp_path)


def test_lanes_of_two_channels_store_together_where_no_line_shares():
    """Beside factors of channels, too; with ends of lines and beside totals four lanes store a sector."""
    for case, together in ((SHARED, True), (with_epilogue(SHARED), True), (every(SHARED), False)):
        assert ("const bool other" in generated(case.kernel, tiling(case, 32), "k").text) == together
    for case, made in CASES:
        assert "const bool other" not in generated(case.kernel, made, "k").text


def test_lines_that_share_sectors_are_proposed_with_these_stored_once():
    shared, whole = (convolution(128, 1, 8, 64, (128, width), (3, 3)) for width in (128, 130))
    found = row_buffered_tilings(shared.kernel)
    assert [t.sector_aligned for t in found] == [False, True, False, True]
    assert [replace(t, sector_aligned=False, stages=0) for t in found[1::2]] == \
        [replace(t, stages=0) for t in found[::2]]
    assert "stored once" in tiling_words(found[1]) and "stored once" not in tiling_words(found[0])
    few, wide = convolution(128, 1, 8, 32, (128, 128), (3, 3)), convolution(128, 1, 8, 64, (128, 256), (3, 3))
    for case, stacked, segments in ((few, 2, 1), (wide, 1, 2)):
        numbers = RowBuffered(case.kernel, row_buffered_tilings(case.kernel)[1])
        assert (numbers.tiling.sector_aligned, numbers.stacked, numbers.segments) == (True, stacked, segments)
    for case in (whole, every(shared), moments(shared)):
        assert not any(t.sector_aligned for t in row_buffered_tilings(case.kernel))


@pytest.mark.parametrize(("case", "changes"), [
    (SHARED, {"rows": 24}), (LINES[0], {"columns": 32}), (LONG, {"rows": 96, "stages": 4}),
    (convolution(1, 1, 8, 64, (6, 34), (3, 3)), {}),
    (every(SHARED), {}), (convolution(1, 1, 8, 64, (6, 9), (3, 4)), {})])
def test_lines_that_cannot_share_sectors_are_refused(case, changes):
    plain = replace(tiling(case, 32), **changes)
    generate(replace(case.kernel, tiling=plain), "taken")
    with pytest.raises(ValueError):
        generate(replace(case.kernel, tiling=replace(plain, sector_aligned=True)), "refused")
