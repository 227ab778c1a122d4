"""CUDA's compiler reads PyTorch's header of everything in short; what needs all of it is built with all of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils import cpp_extension

from kernelwright.judge.inside import builds

TEXT = "#include <torch/extension.h>\n"


@pytest.mark.parametrize(("cuda", "refuses", "tries"), [
    (TEXT, (), 1), (TEXT, ("short",), 2), ("#include <torch/types.h>\n", (), 1)])
def test_which_headers_a_kernel_is_built_with(cuda: str, refuses: tuple[str, ...], tries: int, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def build(**options: Any) -> None:
        seen.append(options)
        if any(word in flag for word in refuses for flag in options["extra_cuda_cflags"]):
            raise RuntimeError("Error building extension")

    monkeypatch.setattr(cpp_extension, builds.BUILD, build)
    payload = {"name": "x", "texts": {"main.cpp": TEXT, "cuda.cu": cuda}, "cuda": True, "headers": None,
               "extra_cflags": ["-O2"], "extra_cuda_cflags": ["-O3"], "extra_ldflags": [], "extra_include_paths": []}
    builds._compile(SimpleNamespace(folder=tmp_path), payload)
    assert len(seen) == tries
    first, last = seen[0]["extra_cuda_cflags"], seen[-1]["extra_cuda_cflags"]
    assert all(options["extra_cflags"] == ["-O2"] for options in seen), "the host's own text is read with all of it"
    assert (tmp_path / "made" / "cuda.cu").read_text() == cuda
    if cuda == TEXT:
        assert first == [f"-I{tmp_path / 'short'}", "-O3"]
        short = (tmp_path / "short" / builds.HEADER).read_text()
        assert "torch/types.h" in short and "include_next <torch/extension.h>" in short
    assert last == (["-O3"] if tries == 2 or cuda != TEXT else first)


def test_what_is_refused_either_way_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**options: Any) -> None:
        raise RuntimeError("Error building extension")

    monkeypatch.setattr(cpp_extension, builds.BUILD, build)
    with pytest.raises(RuntimeError, match="Error building"):
        builds._compile(SimpleNamespace(folder=tmp_path), {
            "name": "x", "texts": {"cuda.cu": TEXT}, "cuda": True, "headers": None,
            **{name: [] for name in builds.FLAGS}})
