"""Contractions that reduce their output channels, on every core, under the CPU emulation, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import Source, run, unit
from test_contraction_channels import channels_last, check, normed, softmax
from torch import equal

from kernelwright.codegen.contraction_geometry import Geometry
from kernelwright.codegen.cuda.contraction import generate
from kernelwright.codegen.cuda.contraction_tilings import tilings
from kernelwright.codegen.cuda.emulate import compile_emulated
from kernelwright.plan.kernels import Tiling

WGMMA = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
MMA = Tiling("mma", rows=64, columns=32, depth=32, stages=3, promote=1)
IMAGE = {"size": (7, 9), "window": (3, 3), "padding": 1}
WIDE = softmax(matmul(90, 40, 200, transposed=(False, True)))
CASES: list[tuple[ContractionCase, Tiling | int]] = [
    (softmax(convolution(3, 1, 5, 20, **IMAGE)), WGMMA),
    (softmax(channels_last(convolution(2, 1, 9, 30, **IMAGE))), replace(WGMMA, rows=128, depth=32, stages=2, teams=2)),
    (normed(convolution(2, 2, 9, 13, (7, 6), (3, 3), stride=2, padding=1, transposed=True)), replace(WGMMA, cluster=2)),
    (softmax(matmul(70, 150, 30)), replace(WGMMA, split=3)),
    (normed(matmul(70, 40, 190)), replace(WGMMA, columns=192, stages=2)),
    (softmax(matmul(90, 40, 250, scheme="native", dtype="bfloat16")), replace(WGMMA, columns=256, stages=2, promote=0)),
    (softmax(convolution(2, 1, 5, 20, **IMAGE)), MMA), (normed(matmul(70, 40, 30)), replace(MMA, rows=128)),
    (WIDE, replace(MMA, columns=256)), (WIDE, replace(MMA, rows=128, columns=256, raw_right=True)),
    (normed(convolution(2, 1, 3, 16, **IMAGE, scheme="float32")), 0),
]


@pytest.fixture(scope="module")
def built():
    """Sources, and a library for each: two translation units, compiled side by side."""
    sources = []
    for number, (case, tiling) in enumerate(CASES):
        kernel, name = replace(case.kernel, tiling=tiling), f"case{number}"
        made = generate(kernel, name)
        sources.append(Source(Geometry(kernel, tiling if isinstance(tiling, Tiling) else WGMMA), name, made.definition,
                              frozenset(made.support)))
    with ThreadPoolExecutor(2) as pool:
        libraries = list(pool.map(compile_emulated, [unit(sources[::2]), unit(sources[1::2])]))
    return [(libraries[n % 2], source) for n, source in enumerate(sources)]


@pytest.fixture(autouse=True)
def few_processors(monkeypatch):
    """So that blocks have several tiles, one after the other."""
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_PROCESSORS", "2")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{c.name}-{t}" for c, t in CASES])
def test_agrees_with_float64(number, built):
    case, _ = CASES[number]
    check(case, case.inputs(), {case.name: built[number]})


@pytest.mark.parametrize("order", ["reverse", "2026"])
def test_thread_order_changes_nothing(order, built, monkeypatch):
    for number in (1, 2, 3, 8):
        monkeypatch.delenv("KERNELWRIGHT_EMULATION_ORDER", raising=False)
        before = run(*built[number], CASES[number][0].inputs())[0]
        monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
        after = run(*built[number], CASES[number][0].inputs())[0]
        assert all(map(equal, before, after))


def test_channels_beyond_one_tile_have_no_tilings():
    """Two terms of 256 columns and what promotes them exceed a warpgroup's registers; mma.sync promotes by pieces."""
    assert not tilings(WIDE.kernel, "wgmma") and tilings(WIDE.kernel, "mma")
    assert all(t.columns >= 200 for t in tilings(replace(WIDE.kernel, scheme="fp16"), "wgmma"))
