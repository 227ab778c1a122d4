"""Core direct_conv, epilogue pool: against float64; compiled; refused."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution
from contraction_tools import on_hopper
from gemm_epilogues import lined, of_lines, pooled, with_much
from gemm_matrix import check_on_the_device
from test_direct_conv import build, run
from torch.nn import functional

from kernelwright.codegen.cuda.direct_conv.generate import schedules, suits
from kernelwright.codegen.cuda.direct_conv.normal_form import normal_form
from kernelwright.codegen.cuda.direct_conv.schedules import predicted_seconds
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.plan.contraction.record import in_groups
from kernelwright.plan.expressions import Index, Reduced
from kernelwright.plan.kernels import Reduction, Store


def conv(*sizes, **options) -> ContractionCase:
    return convolution(*sizes, scheme="float32", **options)


def planed(case: ContractionCase) -> ContractionCase:
    """The case with windows of two planes and two lines, each of an axis in pairs, if it has no phases."""
    *before, plane, line, last = case.kernel.axes
    pairs = (axis if axis.out_stride > 1 else in_groups(axis) for axis in (plane, line))
    return of_lines(replace(case, kernel=replace(case.kernel, axes=(*before, *pairs, last))), planes=2)


LINE = conv(2, 1, 3, 5, (17,), (3,), padding=1)
IMAGE = conv(2, 2, 3, 4, (7, 19), (3, 3), padding=1)
STRIDED = conv(2, 1, 2, 3, (11, 18), (3, 3), stride=2, padding=1)
DILATED = conv(1, 1, 4, 6, (9, 13), (3, 2), dilation=2)
POINTS = conv(2, 1, 3, 4, (6, 8), (1, 1))
VOLUME = conv(1, 1, 2, 3, (4, 7, 10), (3, 3, 3), padding=1)
MANY = conv(1, 1, 40, 6, (5, 12), (3, 3), padding=1)  # several steps of channels
UP = conv(2, 1, 3, 4, (4, 9), (3, 3), stride=2, padding=1, output_padding=1, transposed=True)
ODD = conv(2, 1, 3, 16, (3, 4, 9), (3, 3, 3), stride=2, padding=1, transposed=True)  # odd sizes
BLOCKS = conv(1, 2, 8, 4, (4, 5, 6), (3, 3, 3), stride=2, padding=1, output_padding=1, transposed=True)
ACROSS = conv(2, 1, 3, 4, (5, 9), (3, 3), stride=(2, 1), padding=1, transposed=True)
CASES = [*(pooled(case, size, kind) for case, size, kind in (
    (LINE, 2, "max"), (LINE, 8, "sum"), (IMAGE, 4, "min"), (STRIDED, 2, "max"), (POINTS, 4, "sum"), (MANY, 2, "max"),
    (UP, 2, "max"), (UP, 4, "sum"), (ODD, 2, "min"), (lined(IMAGE), 2, "max"), (lined(STRIDED), 2, "sum"),
    (lined(POINTS), 2, "min"), (lined(VOLUME), 2, "max"), (of_lines(UP), 2, "max"), (of_lines(UP), 8, "max"),
    (of_lines(ODD), 2, "max"), (planed(ODD), 2, "max"), (planed(BLOCKS), 4, "sum"), (planed(VOLUME), 2, "max"),
    (of_lines(ACROSS), 2, "max"))),
    *(with_much(case, size) for case, size in (
        (LINE, 4), (IMAGE, 2), (DILATED, 2), (VOLUME, 2), (MANY, 4), (UP, 2), (ODD, 2), (lined(DILATED), 4),
        (lined(MANY), 2), (of_lines(UP), 2), (of_lines(BLOCKS), 2), (planed(ODD), 2), (planed(BLOCKS), 2)))]


@pytest.fixture(scope="module")
def built() -> list[tuple]:
    return build([case.kernel for case in CASES])


def check(case: ContractionCase, found: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    for mine, expected, dtype in zip(found, case.expected(inputs), case.kernel.output_dtypes, strict=True):
        bound = {"float32": 2e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
        assert ((mine.double() - expected).abs() <= bound * expected.abs().max()).all()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_agrees_with_float64(number, built):
    case = CASES[number]
    inputs = case.inputs()
    check(case, run(*built[number], case.kernel, inputs), inputs)


def test_every_schedule_gives_the_same_in_any_order_of_threads(monkeypatch):
    some = [with_much(planed(ODD), 2), with_much(lined(IMAGE), 2), with_much(MANY, 4), pooled(of_lines(ACROSS), 2)]
    chosen = [(case, schedule) for case in some for schedule in schedules(case.kernel)[:5]]
    libraries = build([case.kernel for case, _ in chosen], [schedule for _, schedule in chosen])
    for (case, schedule), (library, source) in zip(chosen, libraries, strict=True):
        inputs, results = case.inputs(), []
        for order in ("forward", "reverse", "7"):
            monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
            results.append(run(library, source, case.kernel, inputs))
        check(case, results[0], inputs)
        for one, first in ((one, first) for other in results[1:] for one, first in zip(other, results[0], strict=True)):
            assert torch.equal(one, first), (case.name, schedule)


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_agrees_with_pytorchs_pools(value, built):
    """Of all planes of a transposed convolution, and where x is not finite."""
    number = next(n for n, case in enumerate(CASES) if case.name == pooled(planed(ODD), 2).name)
    x, w = CASES[number].inputs()
    x[1, 2, 1, 2, 3] = value
    (found,) = run(*built[number], CASES[number].kernel, [x, w])
    expected = functional.max_pool3d(functional.conv_transpose3d(x, w, stride=2, padding=1), 2)
    assert torch.allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not found.isfinite().all()


def test_a_window_is_a_cell():
    """As many output phases as positions along each axis; positions behind the last whole window are none."""
    for case in CASES:
        normal, window = normal_form(case.kernel), case.kernel.pool_window
        assert tuple(axis.out_stride for axis in normal.axes[-len(window):]) == window
        assert normal.pooled_domain[-len(window):] == case.kernel.pooled_domain[-len(window):]
        assert normal.domain[-1] % window[-1] == 0
        for schedule in schedules(case.kernel):
            assert schedule.writes == "straight" and schedule.split <= len(normal.axes) - len(window)


def test_pooled_results_are_less_to_write():
    large = conv(128, 1, 3, 16, (16, 32, 32), (3, 3, 3), stride=2, padding=1, output_padding=1, transposed=True)

    def seconds(case: ContractionCase) -> float:
        return predicted_seconds(normal_form(case.kernel), schedules(case.kernel)[0])

    kinds = [large, pooled(large, 2), pooled(of_lines(large), 2), pooled(planed(large), 2)]
    assert all(suits(case.kernel) for case in kinds)
    assert [seconds(case) for case in kinds] == sorted(map(seconds, kinds), reverse=True)
    assert tilings(replace(kinds[2].kernel, scheme="fp16"), "wgmma") == []
    assert tilings(replace(kinds[3].kernel, scheme="fp16"), "wgmma") == []


def test_what_no_thread_has_is_refused():
    def refused(case: ContractionCase) -> bool:
        assert not suits(case.kernel)
        with pytest.raises(ValueError, match="no pools of sums by float32 multiply-adds but of whole windows"):
            generate(case.kernel, "k")
        return True

    case = pooled(conv(2, 1, 3, 4, (9, 9), (3, 3), stride=3, transposed=True), 2)
    assert refused(case)  # three output phases in windows of two
    kernel = pooled(IMAGE, 2).kernel
    stores = (*kernel.stores, Store(1, IMAGE.kernel.stores[0].index, Reduced(0)))
    assert refused(ContractionCase("both", replace(kernel, stores=stores, output_dtypes=("float32",) * 2), ()))
    assert refused(ContractionCase("two", replace(kernel, pools=(*kernel.pools, Reduction("max", Reduced(1)))), ()))
    assert refused(ContractionCase("line", replace(pooled(LINE, 2).kernel, pool_lines=2), ()))
    apart = replace(kernel.stores[0], index=Index((*kernel.stores[0].index.strides[:-1], 8)))
    assert not suits(replace(kernel, stores=(apart,)))  # windows are no neighbours


def test_no_window_no_work():
    source = generate(pooled(conv(2, 1, 3, 4, (3, 3), (3, 3)), 2).kernel, "k")
    assert "KW_LAUNCH" not in source.definition


@needs_nvcc
def test_nothing_spills(tmp_path):
    check_compiles([case.kernel for case in CASES], "90a", tmp_path)


@on_hopper
def test_on_the_device(tmp_path):
    check_on_the_device([(case, None) for case in CASES], tmp_path,
                        lambda case, found: check(case, found, case.inputs()))
