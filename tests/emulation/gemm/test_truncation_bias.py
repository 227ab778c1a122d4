"""What tensor cores cut off sums is compensated: the share, under emulation and on a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import all_generated, compiled, on_hopper, run
from gemm_epilogues import average
from gemm_matrix import check_on_the_device

from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.precision import truncation_bias as truncation
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling

pytestmark = pytest.mark.usefixtures("few_processors")

TWO_TAPS = Tiling("wgmma", rows=128, columns=64, depth=8, stages=3, pingpong=2, promote=1)
DEEP = Tiling("wgmma", rows=64, columns=64, depth=32, stages=3)
#: An interval of a step, of a few, and of all; the last one's steps are in two parts.
CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (convolution(8, 1, 8, 64, (18, 18), (3, 3), padding=1), TWO_TAPS),
    (convolution(8, 1, 8, 64, (18, 18), (3, 3), padding=1), replace(TWO_TAPS, promote=3)),
    (matmul(256, 1024, 64), replace(DEEP, promote=4)), (matmul(256, 1024, 64), replace(DEEP, promote=8)),
    (matmul(256, 512, 64), DEEP), (matmul(256, 1024, 64), replace(DEEP, promote=8, split_k=2)),
]
IDS = [f"{c.kernel.in_channels}-{t.depth}p{t.promote}s{t.split_k}" for c, t in CHECKED]


def layout_of(case: ContractionCase, tiling: Tiling) -> Layout:
    return Layout(Geometry(case.kernel, tiling), 0)


def slope(case: ContractionCase, found: torch.Tensor, inputs: list[torch.Tensor]) -> float:
    """The share of the exact sums that stands in the errors."""
    exact = case.expected(inputs)[0]
    return float(((found.double().cpu() - exact) * exact).sum() / exact.square().sum())


@pytest.mark.parametrize("products", [[2], [2, 2], [6, 6], [2] * 8, [3, 1, 2], [1]])
def test_the_share_counts_what_each_product_finds(products):
    """Sums of ones, each of which a product of two high terms brings; the others bring nothing."""
    there, lost = 0, 0
    for count in products:
        for _ in range(2 * count):
            lost += there
        for _ in range(count):
            there += 1
            lost += there
    assert truncation.interval_share(products) == pytest.approx(lost / there)


def test_what_is_lost_follows_the_stretches():
    def shares(case: ContractionCase, tiling: Tiling) -> float:
        return truncation.lost(layout_of(case, tiling)) / truncation.LOSS

    few = matmul(256, 1024, 64)
    assert shares(few, replace(DEEP, promote=1)) == pytest.approx(1.5)  # two products of 16 channels
    assert shares(few, replace(DEEP, promote=4)) == pytest.approx(10.5)
    assert shares(few, replace(DEEP, promote=8)) == pytest.approx(22.5)
    assert shares(few, replace(DEEP, promote=8, split_k=2)) == pytest.approx(22.5)
    assert shares(few, DEEP) == pytest.approx(truncation.interval_share([2] * 32))
    assert "fmaf(sums[p][i], " in truncation.make_up(layout_of(few, DEEP))
    # Less than a unit in the last place is left, but where many sums are added up.
    short = matmul(256, 32, 64)
    assert shares(short, DEEP) == pytest.approx(1.5) and not truncation.make_up(layout_of(short, DEEP))
    assert truncation.make_up(layout_of(matmul(256, 64, 64), DEEP))
    window = convolution(2, 1, 8, 64, (6, 300), (3, 3), padding=1)
    assert shares(window, TWO_TAPS) == pytest.approx(1.5) and not truncation.make_up(layout_of(window, TWO_TAPS))
    assert truncation.make_up(layout_of(average(window), replace(TWO_TAPS, pingpong=1)))
    assert not truncation.make_up(layout_of(matmul(256, 1024, 64, scheme="fp16"), DEEP))


@pytest.mark.parametrize("share", [1e-8, 4e-8, 6.75e-8, 1e-7, 1.6e-7, 5e-7, 2e-6])
def test_a_factor_adds_its_share_on_average(share):
    """Of float32 numbers whose logarithms are evenly spread."""
    factor = truncation.factor(share)
    exponents = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = torch.exp2(exponents).float()
    found = (sums.double() + factor * sums.double()).float()
    assert float(((found.double() - sums.double()) / sums.double()).mean()) == pytest.approx(share, rel=0.05, abs=2e-10)
    assert truncation.added(factor) == pytest.approx(share, rel=1e-6)


@pytest.fixture(scope="module")
def libraries():
    with pytest.MonkeyPatch.context() as patch:
        sources = all_generated(CHECKED)
        patch.setattr(truncation, "LOSS", 0.0)
        patched = all_generated(CHECKED)
    return compiled(sources), compiled(patched)


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=IDS)
def test_no_share_of_the_sums_is_missing(number, libraries):
    case, tiling = CHECKED[number]
    inputs, lost = case.inputs(), truncation.lost(layout_of(case, tiling))
    made_up, short = (slope(case, run(*some[number], inputs)[0][0], inputs) for some in libraries)
    assert short < -0.6 * lost  # the emulation cuts as tensor cores do
    assert abs(made_up) < 0.5 * abs(short)


@on_hopper
def test_on_the_device(tmp_path, monkeypatch, capsys):
    """Of normal operands little is missing; without what is made up for, as much as is said."""
    found: list[float] = []

    def check(case: ContractionCase, outputs: list[torch.Tensor]) -> None:
        found.append(slope(case, outputs[0], case.inputs()))

    check_on_the_device(CHECKED, tmp_path, check)
    shares = [truncation.lost(layout_of(case, tiling)) for case, tiling in CHECKED]
    monkeypatch.setattr(truncation, "LOSS", 0.0)
    (tmp_path / "short").mkdir()
    check_on_the_device(CHECKED, tmp_path / "short", check)
    for name, lost, made_up, short in zip(IDS, shares, found[:len(CHECKED)], found[len(CHECKED):], strict=True):
        with capsys.disabled():
            print(f"{name}: {lost:.2e} said, {short:+.2e} lost, {made_up:+.2e} with what is made up for")
        assert 0.4 * lost < -short < 1.6 * lost, name
        assert abs(made_up) < 0.6 * abs(short), name
