"""Contractions compile for the devices they are for: no spills, and no product that waits for another without need."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from contraction_cases import ContractionCase, convolution, matmul, with_epilogue
from test_contraction_channels import softmax

from kernelwright.codegen.cuda.contraction import generate, tilings
from kernelwright.codegen.generate import support_text
from kernelwright.plan.kernels import Contraction, Tiling

IMAGES = {"size": (56, 56), "window": (3, 3), "padding": 1}
LARGE = with_epilogue(matmul(4096, 4096, 4096, transposed=(False, True)))
HALVES = matmul(4096, 4096, 4096, scheme="native", dtype="bfloat16")


def images(*channels: int, scheme: str = "fp16x3", **options) -> ContractionCase:
    return with_epilogue(convolution(32, 1, *channels, **{**IMAGES, **options}, scheme=scheme))


def wgmma(rows: int, columns: int, depth: int, stages: int, cluster: int = 1, promote: int = 0, teams: int = 1
          ) -> Tiling:
    return Tiling("wgmma", rows, columns, depth, stages, cluster, promote, teams)


WGMMA = [
    (LARGE, wgmma(128, 128, 32, 4, promote=4)), (LARGE, wgmma(128, 192, 32, 3, 2, promote=4)),
    (LARGE, wgmma(64, 128, 32, 4, promote=4, teams=2)), (HALVES, wgmma(128, 256, 64, 3, 2)),
    (HALVES, wgmma(256, 128, 64, 3)), (images(64, 128, scheme="fp16"), wgmma(128, 128, 32, 4, 2, teams=2)),
    (images(64, 64), wgmma(64, 64, 32, 2, promote=4)), (images(48, 24, stride=2, transposed=True), None),
    (matmul(256, 65536, 256), None), (softmax(images(64, 128)), wgmma(128, 128, 32, 4, 2, promote=4)),
    (softmax(matmul(4096, 64, 256, groups=4, scheme="native", dtype="bfloat16")), None),
]
MMA = [LARGE, images(32, 64), softmax(images(32, 64))]


def text_of(cases: list[tuple[ContractionCase, Tiling | None]], core: str = "wgmma") -> str:
    kernels = [replace(case.kernel, tiling=tiling or tilings(case.kernel, core)[0]) for case, tiling in cases]
    return source(kernels)


def source(kernels: list[Contraction]) -> str:
    sources = [generate(kernel, f"k{number}") for number, kernel in enumerate(kernels)]
    return support_text(sources, "cuda") + "\n".join(s.definition for s in sources)


def report(text: str, architecture: str, folder: Path) -> str:
    """What ptxas says of a text."""
    path = folder / f"{architecture}_{abs(hash(text))}.cu"
    path.write_text(text)
    done = subprocess.run(["nvcc", "-std=c++17", f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
                           "-Xptxas", "-v", "-cubin", "-o", str(path.with_suffix(".cubin")), str(path)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stderr


def troubles(said: str) -> list[str]:
    """Spills, and remarks on wgmma: serialised products, or waits that the compiler puts in."""
    lines = said.splitlines()
    return [line for line in lines if "(C75" in line] \
        + [line for line in lines if "spill" in line and "0 bytes spill stores, 0 bytes spill loads" not in line]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
def test_wgmma_compiles_without_spills_or_serialised_products(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda part: report(text_of(part), "90a", tmp_path), [WGMMA[::2], WGMMA[1::2]]))
    for text in said:
        assert "Used" in text
        assert troubles(text) == []


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
@pytest.mark.parametrize("architecture", ["80", "90a", "100"])
def test_mma_compiles_without_spills(architecture, tmp_path):
    said = report(text_of([(case, None) for case in MMA], "mma"), architecture, tmp_path)
    assert "Used" in said
    assert troubles(said) == []


def test_troubles_are_found():
    said = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n" \
        "    8 bytes stack frame, 12 bytes spill stores, 28 bytes spill loads\n" \
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    assert len(troubles(said)) == 2
