"""Lines that share sectors of memory, each of which is stored once, by convolutions that go down strips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import all_generated, check_thread_order, compiled, generated, on_hopper, run
from test_contraction_strips import IMAGE, MANY, ROUNDED, tiling
from test_contraction_totals import every, moments
from test_contraction_wgmma import check, check_on_the_device

from kernelwright.codegen.cuda.contraction import generate
from kernelwright.codegen.cuda.contraction_strips_tilings import tilings_of_strips
from kernelwright.plan.contraction import Tiling
from kernelwright.plan.describe import tiling_words


def aligned(case: ContractionCase, *arguments: int, **options: int) -> tuple[ContractionCase, Tiling]:
    """A tiling that stores what two lines share of a sector once."""
    return case, replace(tiling(case, *arguments, **options), aligned=True)


#: Lines of 18 to 38 positions; factors of channels; several blocks of channels.
SHARED = convolution(3, 1, 6, 64, (17, 28), (3, 3), padding=(1, 0))
CASES = [aligned(with_epilogue(IMAGE), 24), aligned(SHARED, 32, 4), aligned(with_epilogue(SHARED), 32, 3, slots=9),
         aligned(SHARED, 32, 1), aligned(with_epilogue(MANY), 24, 2), aligned(ROUNDED, 40, 2),
         aligned(with_epilogue(convolution(2, 1, 16, 130, (11, 22), (3, 3), scheme="fp16")), 24, 6),
         aligned(convolution(2, 1, 4, 64, (5, 9, 22), (2, 3, 3)), 24, 3)]


@pytest.fixture(scope="module")
def libraries():
    return compiled(all_generated(CASES))


def test_against_float64(libraries):
    for (case, _), library in zip(CASES, libraries, strict=True):
        check(case, run(*library, case.inputs())[0])


@pytest.mark.parametrize("order", ["reverse", "7"])
def test_the_order_of_threads_changes_nothing(order, libraries):
    check_thread_order(order, [case for case, _ in CASES], libraries)


def test_the_same_bits_as_without(libraries):
    """Sums are the same, wherever and by whom they are stored."""
    apart = compiled(all_generated([(case, replace(made, aligned=False)) for case, made in CASES]))
    for (case, _), one, other in zip(CASES, libraries, apart, strict=True):
        (mine,), (expected,) = (run(*library, case.inputs())[0] for library in (one, other))
        assert mine.equal(expected)


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
    found = tilings_of_strips(shared.kernel)
    assert [t.aligned for t in found] == [False, True, False, True]
    assert [replace(t, aligned=False, stages=0) for t in found[1::2]] == [replace(t, stages=0) for t in found[::2]]
    assert "stored once" in tiling_words(found[1]) and "stored once" not in tiling_words(found[0])
    for case in (whole, every(shared), moments(shared)):
        assert not any(t.aligned for t in tilings_of_strips(case.kernel))


@pytest.mark.parametrize(("case", "changes"), [
    (SHARED, {"rows": 16}), (SHARED, {"columns": 32}), (convolution(1, 1, 8, 64, (6, 34), (3, 3)), {}),
    (every(SHARED), {}), (convolution(1, 1, 8, 64, (6, 9), (3, 4)), {})])
def test_lines_that_cannot_share_sectors_are_refused(case, changes):
    plain = replace(tiling(case, 32), **changes)
    generate(replace(case.kernel, tiling=plain), "taken")
    with pytest.raises(ValueError):
        generate(replace(case.kernel, tiling=replace(plain, aligned=True)), "refused")
