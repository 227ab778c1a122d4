"""Core row_buffered: what producers bring closer before they have registers for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import Source, compiled, generated, run
from gemm_matrix import check
from test_row_buffered import IMAGE, LONG, MANY, VOLUME, tiling

from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.row_ring import ahead
from kernelwright.plan.expressions import Guard

WHOLE = convolution(2, 1, 60, 64, (7, 140), (3, 3), padding=(1, 0), scheme="fp16")
DEEP = convolution(1, 1, 60, 20, (4, 7, 20), (2, 3, 3), padding=1, scheme="fp16")
BY_TWO = convolution(1, 1, 60, 64, (9, 92), (3, 3), stride=2, padding=1, scheme="fp16")
#: Lines that share sectors, the last of whose channels are no eight; windows that move by two; planes.
CASES = [(case, replace(made, sector_aligned=True)) for case, made in (
    (WHOLE, tiling(WHOLE, 72, slots=5)), (BY_TWO, tiling(BY_TWO, 48, slots=5)),
    (DEEP, tiling(DEEP, 24, slots=4, warpgroups=1)))]


def watched(case: ContractionCase, made: Source) -> Source:
    """The text with an end where it brings closer what is not in x, or where it reads what it has not brought closer:
    but for the first line of each block."""
    name, size, axes = made.name, case.inputs()[0].numel(), len(case.kernel.axes)
    names = ("n", "g", "(c + e)", *(f"q{a}" for a in range(axes)))
    strides = case.kernel.left.index.strides
    place = " + ".join(f"{stride}LL * {axis}" for stride, axis in zip(strides, names, strict=True))
    text = made.text
    for old, new in ((f"? {name}_left(in0, n, g, c + e", f"? read_{name}({place}) * {name}_left(in0, n, g, c + e"),
                     ("kw_prefetch(in0 + ", f"closer_{name}("),
                     ("ask(x[j]);", f"first_{name} = true, ask(x[j]), first_{name} = false;")):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return replace(made, text=f"""
static bool near_{name}[{size // 32 + 1}];  // 128 bytes each
static thread_local bool first_{name};
static void closer_{name}(long long place) {{
  if (place < 0 || place >= {size}) kw_emulation::fail("brings closer what is not in x");
  near_{name}[place / 32] = true;
}}
static float read_{name}(long long place) {{
  if (!first_{name} && !near_{name}[place / 32]) kw_emulation::fail("reads what is not near");
  return 1.0f;
}}
{text}""")


def test_what_is_read_has_been_brought_closer():
    sources = [watched(case, generated(case.kernel, made, f"near{n}")) for n, (case, made) in enumerate(CASES)]
    for (case, _), library in zip(CASES, compiled(sources), strict=True):
        check(case, run(*library, case.inputs())[0])


@pytest.mark.parametrize("case", [WHOLE, LONG, BY_TWO, DEEP, IMAGE, MANY, VOLUME])
def test_lines_are_brought_closer_where_one_is_on_its_way(case):
    """Beside stores of whole sectors; of x in memory alone, which pads nothing by itself."""
    made = dict((one.name, made) for one, made in CASES).get(case.name, tiling(case))
    expected = made.sector_aligned and ahead(RowBuffered(case.kernel, made)) == 1
    assert ("kw_prefetch(" in generated(case.kernel, made, "k").text) == expected
    x = case.kernel.left
    guarded = replace(case.kernel, left=replace(x, guards=(Guard(x.index, case.inputs()[0].numel()),)))
    for kernel in (with_epilogue(case).kernel, guarded):
        assert "kw_prefetch(" not in generated(kernel, made, "k").text
