"""What ptxas says of generated contractions, for their tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.generate import support_text
from kernelwright.plan.contraction.record import Contraction

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")


def check_compiles(kernels: Sequence[Contraction], architecture: str, folder: Path, spilled: int = 0) -> str:
    """That kernels compile without `troubles`; what ptxas says of them. ``spilled``: bytes of a thread that may wait in
    memory."""
    said = report(source(kernels), architecture, folder)
    assert "Used" in said, said
    found = troubles(said, spilled)
    assert not found, "\n".join(found)
    return said


def source(kernels: Sequence[Contraction]) -> str:
    """One translation unit of kernels with their tilings."""
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


def troubles(said: str, spilled: int = 0) -> list[str]:
    """Spills of more bytes than so many, and remarks on wgmma: serialised products, or waits that the compiler puts
    in."""
    lines = said.splitlines()
    spills = ((line, re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)) for line in lines)
    return [line for line in lines if "(C75" in line] \
        + [line for line, found in spills if found and max(map(int, found.groups())) > spilled]
