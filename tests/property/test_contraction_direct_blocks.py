"""Blocks of sums of direct contractions: as exact as the order in which cuDNN adds, and what they cost."""

from __future__ import annotations

from itertools import product
from math import prod, sqrt

import pytest
import torch
from contraction_cases import ContractionCase, with_epilogue
from hypothesis import given, settings
from hypothesis import strategies as st
from test_direct_conv import CASES, assert_exact, build, conv, reducing, run

from kernelwright.codegen.cuda.direct_conv import summation_blocks as blocks
from kernelwright.codegen.cuda.direct_conv.cells import Schedule, phase_classes
from kernelwright.codegen.cuda.direct_conv.generate import generate, schedules, suits
from kernelwright.codegen.cuda.direct_conv.layout import Layout
from kernelwright.codegen.cuda.direct_conv.normal_form import normal_form
from kernelwright.codegen.cuda.direct_conv.schedules import estimate, fits, least_seconds, predicted_seconds
from kernelwright.plan.records import KernelConfig
from kernelwright.tune.contraction_candidates import candidates

#: What tune/accuracy.py grants to sums of the same products in another order: of rms errors, of the largest.
RMS, LARGEST = 1.25, 1.5
CUBE = {"stride": 2, "padding": 1, "transposed": True}
FIVE = conv(1, 1, 32, 4, (4, 4, 6), (5, 5, 5), stride=2, padding=2, transposed=True)
THREE = conv(1, 2, 8, 6, (5, 6, 8), (3, 3, 3), **CUBE)
STEPS = conv(1, 4, 8, 6, (12, 12), (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), transposed=True)
ODD_SIZES = conv(1, 2, 8, 4, (4, 5, 6), (3, 5, 7), stride=2, padding=(1, 2, 3), output_padding=1, transposed=True)
DENSE = conv(1, 1, 32, 4, (4, 5, 6), (3, 5, 7), transposed=True)
LONG_SUMS = {"five": FIVE, "three": THREE, "steps": STEPS, "odd_sizes": ODD_SIZES, "dense": DENSE}
FILLS = {"normal": lambda t: t, "positive": torch.abs, "as a model's": lambda t: torch.special.ndtr(t)}


def first(case: ContractionCase, blocked: bool) -> Schedule:
    """The best schedule with blocks, or without."""
    return next(s for s in schedules(case.kernel) if (s.block > 0) == blocked)


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, bool], tuple]:
    """Library and source of each case with blocks and without."""
    keys = list(product(LONG_SUMS, (True, False)))
    chosen = [first(LONG_SUMS[name], blocked) for name, blocked in keys]
    return dict(zip(keys, build([LONG_SUMS[name].kernel for name, _ in keys], chosen), strict=True))


def tap_by_tap(case: ContractionCase, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The sums of a transposed convolution in float32 as cuDNN adds: over channels for each tap, then the taps."""
    kernel = case.kernel
    batch, groups, channels = kernel.batch, kernel.groups, kernel.in_channels
    x = x.reshape(batch, groups, channels, 1, *x.shape[2:]).double()
    w = w.reshape(1, groups, channels, kernel.out_channels, *w.shape[2:]).double()
    # Outputs in phases, cells of each; with room for what a tap moves out of sight.
    room = [sum(a.in_size for a in kernel.axes)] * len(kernel.axes)
    sums = {phase: torch.zeros(batch, groups, kernel.out_channels, *(3 * n for n in room))
            for phase in product(*(range(a.out_stride) for a in kernel.axes))}
    for taps in product(*(a.taps for a in kernel.axes)):
        chain = torch.zeros(())
        for c in range(channels):  # a fused multiply-add rounds once: products are exact in float64
            weight = w[(slice(None), slice(None), c, slice(None), *(t.number for t in taps))]
            chain = (x[:, :, c] * weight.reshape(1, groups, -1, *[1] * len(room)) + chain.double()).float()
        firsts = [n - t.offset for n, t in zip(room, taps, strict=True)]
        at = (slice(n, n + a.in_size) for n, a in zip(firsts, kernel.axes, strict=True))
        sums[tuple(t.phase for t in taps)][(..., *at)] += chain
    result = torch.zeros(kernel.domain)
    for phase, found in sums.items():
        inside = result[(..., *(slice(p, None, a.out_stride) for p, a in zip(phase, kernel.axes, strict=True)))]
        inside.copy_(found[(..., *(slice(n, n + size) for n, size in zip(room, inside.shape[3:], strict=True)))])
    return result.flatten()


def errors(found: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Errors over the rms of what is exact: rms and largest."""
    scale, difference = exact.square().mean().sqrt(), (found.double() - exact).abs()
    return float(difference.square().mean().sqrt() / scale), float(difference.max() / scale)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", LONG_SUMS)
def test_blocks_are_as_exact_as_sums_tap_by_tap_and_one_chain_is_not(name, fill, built):
    case = LONG_SUMS[name]
    x, w = case.inputs()
    x, w = FILLS[fill](x), w.abs() if fill == "positive" else w
    exact = case.expected([x, w])[0].flatten()
    beside = tap_by_tap(case, x, w)
    assert errors(beside, exact)[0] < 1e-6  # the order is right, so are its sums
    library = errors(beside, exact)
    blocked, single = (errors(run(*built[name, b], case.kernel, [x, w])[0], exact) for b in (True, False))
    assert blocked[0] <= RMS * library[0] and blocked[1] <= LARGEST * library[1], (blocked, library)
    assert single[0] > RMS * library[0] and single[0] > 1.2 * blocked[0], (single, blocked, library)


@pytest.mark.parametrize("name", LONG_SUMS)
def test_errors_are_within_the_blocked_bound_and_as_large_as_predicted(name, built):
    """Higham's bound, and a rounding of 2.45e-8 for each of those that the module counts."""
    case = LONG_SUMS[name]
    kernel, schedule = normal_form(case.kernel), first(case, True)
    inputs, block = case.inputs(), min(schedule.block, schedule.depth)
    exact = case.expected(inputs)[0].flatten()
    sizes = case.expected([t.abs() for t in inputs])[0].flatten()
    found = run(*built[name, True], case.kernel, inputs)[0]
    most = max(prod(sum(t.phase == p for t in a.taps) for a, p in zip(kernel.axes, phase, strict=True))
               for phase in product(*(range(a.out_stride) for a in kernel.axes)))
    roundings = block * most + -(-kernel.in_channels // block)
    assert ((found.double() - exact).abs() <= 1.01 * roundings * 2.0**-24 * sizes).all()
    counted = block * blocks.taps(kernel) / 2 + kernel.in_channels / block / 2
    assert errors(found, exact)[0] <= 1.25 * 2.45e-8 * sqrt(counted)
    single = run(*built[name, False], case.kernel, inputs)[0]
    assert errors(single, exact)[0] > 1.25 * 2.45e-8 * sqrt(counted)


@given(st.integers(1, 256), st.integers(1, 7), st.integers(1, 7), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_block_is_nearly_the_best_and_no_worse_than_the_library(channels, window, other, stride):
    kernel = conv(1, 1, channels, 4, (9, 9), (window, other), stride=stride, transposed=True).kernel
    size, taps = blocks.block(kernel), blocks.taps(kernel)
    if not size:
        assert blocks.chain_ratio(kernel) <= 1.1
        return

    def roundings(block: int) -> float:
        return block * taps / 2 + -(-channels // block) / 2

    assert 0 < size <= channels
    assert roundings(size) <= 1.5 * min(map(roundings, range(1, channels + 1)))
    assert roundings(size) <= RMS**2 * blocks.library_roundings(kernel)


def test_known_counts():
    """The errors that cuDNN and one chain were measured to have on an H200, within 6 %."""
    measured = {THREE.name: (6.86e-8, 1.10e-7), STEPS.name: (7.13e-8, 1.19e-7), ODD_SIZES.name: (9.10e-8, 1.96e-7),
                DENSE.name: (2.02e-7, 9.66e-7)}
    for case in (THREE, STEPS, ODD_SIZES, DENSE):
        library, single = measured[case.name]
        count = blocks.library_roundings(case.kernel)
        assert 2.45e-8 * sqrt(count) == pytest.approx(library, rel=0.06)
        assert 2.45e-8 * sqrt(count) * blocks.chain_ratio(case.kernel) == pytest.approx(single, rel=0.06)
    assert blocks.block(FIVE.kernel) == 2 and blocks.block(DENSE.kernel) == 1 and blocks.blocks_first(THREE.kernel)


def test_where_one_chain_is_as_exact_there_are_no_blocks():
    for case in [c for c in CASES if "_t_" not in c.name][::2]:
        assert {(s.block, s.split) for s in schedules(case.kernel)} == {(0, 0)}, case.name
    assert blocks.block(conv(2, 6, 1, 1, (9, 9), (5, 5), **CUBE).kernel) == 0  # one channel
    assert blocks.block(conv(1, 1, 16, 8, (9, 9), (2, 2), stride=2, transposed=True).kernel) == 0  # one tap
    few = schedules(conv(16, 1, 3, 16, (16, 32, 32), (3, 3, 3), **CUBE).kernel)
    assert [s.block for s in few[:4]] == [0, 1, 0, 1]  # nearly as exact: what is faster first
    assert [s.block for s in schedules(conv(4, 4, 8, 8, (32, 64, 128), (3, 3, 3), **CUBE).kernel)[:4]] == [2, 0, 2, 0]


#: Blocks within a step and of a whole one, the last of them incomplete, fewer phases at once, sums that nobody adds to.
SCHEDULES = [
    (THREE, Schedule((2, 2, 8), 1, 1, 2, 2, 3, 8, block=4)),
    (THREE, Schedule((1, 2, 8), 1, 0, 1, 2, 3, 2, 1, "traded", 8)),
    (THREE, Schedule((2, 2, 8), 1, 1, 1, 6, 1, 6, block=3)),
    (THREE, Schedule((2, 2, 8), 1, 0, 2, 3, 2, 8, 1, "traded", 2, 1)),
    (THREE, Schedule((5, 6, 8), 1, 2, 2, 6, 1, 2, split=3)),
    (STEPS, Schedule((4, 12), 1, 0, 4, 2, 3, 8, 4, "traded", 2)),
    (STEPS, Schedule((3, 6), 2, 0, 3, 3, 2, 4, block=1, split=1)),
    (DENSE, Schedule((1, 3, 8), 1, 1, 3, 4, 1, 2, block=1)),
    (reducing(THREE), Schedule((2, 2, 8), 1, 0, 1, 6, 1, 8, block=2)),
]


def test_any_blocks_give_the_sums():
    chosen = [(case if case.kernel.reductions else with_epilogue(case), schedule) for case, schedule in SCHEDULES]
    for (case, _), built in zip(chosen, build([c.kernel for c, _ in chosen], [s for _, s in chosen]), strict=True):
        inputs = case.inputs()
        outputs = run(*built, case.kernel, inputs)
        if not case.kernel.reductions:
            assert_exact(case, outputs, inputs)
        for found, expected in zip(outputs, case.expected(inputs), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=5e-5, atol=5e-5)


def test_registers_and_instructions_of_blocks():
    kernel = normal_form(THREE.kernel)
    phases = next(phase_classes(kernel))
    plain = Layout(kernel, Schedule((1, 2, 8), 1, 1, 2, 2, 3, 8), phases)
    blocked = Layout(kernel, Schedule((1, 2, 8), 1, 1, 2, 2, 3, 8, block=2), phases)
    assert plain.moved == 0 and blocked.moved == blocked.sums == 32
    assert blocked.registers == plain.registers + 32
    assert plain.resident > blocked.resident
    large = normal_form(conv(4, 4, 8, 8, (32, 64, 128), (3, 3, 3), **CUBE).kernel)
    plain, blocked = (Layout(large, Schedule((1, 2, 64), 1, 1, 2, 2, 4, 8, block=b), phases) for b in (0, 2))
    assert estimate(blocked).issue > 1.05 * estimate(plain).issue
    assert [len(list(phase_classes(kernel, split))) for split in (0, 1, 2, 3)] == [1, 2, 4, 8]
    # A half of these phases has no taps: their sums stay 0.
    steps = normal_form(STEPS.kernel)
    layout = Layout(steps, Schedule((4, 12), 1, 0, 2, 2, 3, 8, block=2), next(phase_classes(steps)))
    assert layout.met == (False,) * 3 + (True,) * 3 and layout.moved == layout.sums // 2
    assert not fits(Layout(kernel, Schedule((1, 2, 8), 1, 1, 2, 2, 3, 8, block=3), phases))  # blocks across steps
    with pytest.raises(ValueError, match="does not fit a block"):
        generate(THREE.kernel, "name", Schedule((1, 2, 8), 1, 1, 2, 2, 3, 8, block=3))


def test_blocks_are_offered_where_they_fit():
    for case in LONG_SUMS.values():
        kernel = normal_form(case.kernel)
        for schedule in schedules(case.kernel):
            assert schedule.block in (0, blocks.block(kernel))
            for phases in phase_classes(kernel, schedule.split):
                layout = Layout(kernel, schedule, phases)
                assert fits(layout) and layout.two_levels == (schedule.block > 0)


def test_no_schedule_takes_less_than_its_products():
    """By that bound most contractions are told that are not worth a search."""
    for case in (*CASES, *LONG_SUMS.values()):
        kernel = normal_form(case.kernel)
        for schedule in schedules(case.kernel):
            assert 0.0 < least_seconds(kernel) <= predicted_seconds(kernel, schedule), case.name


def test_long_transposed_sums_are_worth_measuring():
    """Three products of tensor cores are less exact than the library's sums; of 64 channels they are not."""
    large = conv(16, 1, 32, 64, (32, 32, 32), (5, 5, 5), stride=2, padding=2, transposed=True).kernel
    assert suits(large) and schedules(large)[0].block == 2
    assert predicted_seconds(normal_form(large), schedules(large)[0]) < 15e-3
    found = candidates(large, "float32", (9, 0), rounds=True, most=6)
    assert found[0].scheme == "fp16" and KernelConfig("float32", 0) in found  # slower than tensor cores
    assert not suits(conv(16, 1, 64, 64, (64, 64), (5, 5), stride=2, padding=2, transposed=True).kernel)
    grouped = conv(8, 4, 8, 8, (12, 24, 48), (3, 5, 7), stride=2, padding=(1, 2, 3), transposed=True, output_padding=1)
    assert candidates(grouped.kernel, "float32", (9, 0), rounds=True, most=6)[0] == KernelConfig("float32", 0)
