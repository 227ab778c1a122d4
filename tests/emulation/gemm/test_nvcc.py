"""Contractions compile for the devices they are for: no spills, and no product that waits for another without need."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from compile_tools import check_compiles, needs_nvcc, troubles
from contraction_cases import ContractionCase, convolution, matmul, with_epilogue
from gemm_epilogues import softmax

from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction

IMAGES = {"size": (56, 56), "window": (3, 3), "padding": 1}
LARGE = with_epilogue(matmul(4096, 4096, 4096, transposed=(False, True)))
HALVES = matmul(4096, 4096, 4096, scheme="native", dtype="bfloat16")


def images(*channels: int, scheme: str = "fp16x3", **options) -> ContractionCase:
    return with_epilogue(convolution(32, 1, *channels, **{**IMAGES, **options}, scheme=scheme))


def wgmma(rows: int, columns: int, depth: int, stages: int, cluster: int = 1, promote: int = 0, warpgroups: int = 1
          ) -> Tiling:
    return Tiling("wgmma", rows, columns, depth, stages, cluster, promote, warpgroups)


WGMMA = [
    (LARGE, wgmma(128, 128, 32, 4, promote=4)), (LARGE, wgmma(128, 192, 32, 3, 2, promote=4)),
    (LARGE, wgmma(64, 128, 32, 4, promote=4, warpgroups=2)), (HALVES, wgmma(128, 256, 64, 3, 2)),
    (HALVES, wgmma(256, 128, 64, 3)), (images(64, 128, scheme="fp16"), wgmma(128, 128, 32, 4, 2, warpgroups=2)),
    (images(64, 64), wgmma(64, 64, 32, 2, promote=4)), (images(48, 24, stride=2, transposed=True), None),
    (matmul(256, 65536, 256), None), (softmax(images(64, 128)), wgmma(128, 128, 32, 4, 2, promote=4)),
    (softmax(matmul(4096, 64, 256, groups=4, scheme="native", dtype="bfloat16")), None),
]
MMA = [LARGE, images(32, 64), softmax(images(32, 64))]


def tiled(cases: list[tuple[ContractionCase, Tiling | None]], core: str = "wgmma") -> list[Contraction]:
    """The kernels with their tilings, the first one for a core for want of another."""
    return [replace(case.kernel, tiling=tiling or tilings(case.kernel, core)[0]) for case, tiling in cases]


@needs_nvcc
def test_wgmma_compiles_without_spills_or_serialised_products(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda part: check_compiles(tiled(part), "90a", tmp_path), [WGMMA[::2], WGMMA[1::2]]))


@needs_nvcc
@pytest.mark.parametrize("architecture", ["80", "90a", "100"])
def test_mma_compiles_without_spills(architecture, tmp_path):
    check_compiles(tiled([(case, None) for case in MMA], "mma"), architecture, tmp_path)


def test_troubles_are_found():
    said = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n" \
        "    8 bytes stack frame, 12 bytes spill stores, 28 bytes spill loads\n" \
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    assert len(troubles(said)) == 2
