"""What fails in us stays with PyTorch, with a note, and the rest is served; what can't be written says which folder."""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from pathlib import Path

import pytest
import torch
from native_tools import other_skeletons
from torch import nn

import kernelwright
from kernelwright import failures, programs
from kernelwright.build.module import BuildFailed, build_failure
from kernelwright.codegen import generate
from kernelwright.emit.write import write_file
from kernelwright.errors import FolderFull, OutputFolderUnusable, describe
from kernelwright.failures import FAILED, is_ours, unwritable
from kernelwright.plan import planner
from kernelwright.plan.kernels import Scan
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import cache_folder
from kernelwright.way_back import fallback

pytestmark = pytest.mark.breaks


class Model(nn.Module):
    """A scan, a reduction and a pointwise result: three kernels."""

    def forward(self, x):
        return torch.tanh(x).mul(2).add(1), x.cumsum(1) * 0.5, (x * x).sum(1) + 1


def fails(*_, **__):
    raise KeyError("injected")


def scans(change):
    """The table of targets with another skeleton for scans."""
    return other_skeletons(change, Scan)


def no_text(skeleton):
    return fails


def text_that_does_not_compile(skeleton):
    def written(kernel, name):
        source = skeleton(kernel, name)
        return dataclasses.replace(source, definition=f"{source.definition}\nthis is no C;\n")

    return written


@pytest.fixture
def inputs():
    return [torch.randn(6, 40, generator=torch.Generator().manual_seed(0))]


FAULTS = {
    "planning a region": lambda patch: patch.setitem(planner._COMPILERS, "scan", fails),
    "writing a kernel": lambda patch: patch.setattr(generate, "TARGETS", scans(no_text)),
}


@pytest.mark.parametrize("target", ["cpp", "cuda"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_region_is_left(fault, target, inputs, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    FAULTS[fault](monkeypatch)
    result = kernelwright.explain(Model(), inputs, target=target, device=GENERIC_CPU)
    assert [k.kind for k in result.modes[0].kernels] == ["loop", "loop"]
    kept = {k.operator: k.reason for k in result.modes[0].kept}
    assert kept["cumsum"].startswith(FAILED)
    (note,) = [n for n in result.notes if n.startswith("Training mode leaves operators to PyTorch")]
    (traceback,) = (tmp_path / "tracebacks").iterdir()
    assert str(traceback) in note and "injected" in traceback.read_text()


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_one_kernel_does_not_compile(target, inputs, monkeypatch, tmp_path):
    """The file is written and checked without that kernel."""
    if target == "cuda" and torch.cuda.is_available():
        pytest.skip("for machines without a GPU")
    monkeypatch.setattr(generate, "TARGETS", scans(text_that_does_not_compile))
    result = kernelwright.optimize(Model(), inputs, target=target, effort="quick", baselines="none",
                                   output=tmp_path / "model_new.py")
    assert any(FAILED in note for note in result.notes)
    assert "this is no C" not in result.path.read_text()
    assert result.certificate is None or result.certificate.passed


STAGES = {
    "capture": lambda patch: patch.setattr(programs, "capture", fails),
    "rewrite": lambda patch: patch.setattr(programs, "rewrite", fails),
    "every plan": lambda patch: [patch.setattr(module, "make_plan", fails) for module in (programs, fallback)],
}


@pytest.mark.parametrize("stage", STAGES)
def test_one_mode_is_left(stage, inputs, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    STAGES[stage](monkeypatch)
    result = kernelwright.explain(Model(), inputs, target="cpp", device=GENERIC_CPU)
    assert bool(result.modes[0].kernels) == (stage == "rewrite")  # without rules it is planned all the same
    assert any(FAILED in note and str(tmp_path) in note for note in result.notes)


# Disks --------------------------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "no space left"), (errno.EDQUOT, "quota"),
                                               (errno.EROFS, "read-only"), (errno.EACCES, "not be written")])
def test_a_folder_that_takes_nothing(number, words):
    file = cache_folder() / "libraries" / "x.so"
    error = OSError(number, os.strerror(number), str(file))
    found = unwritable(RuntimeError("while building"))
    assert found is None
    wrapped = RuntimeError("while building")
    wrapped.__cause__ = error
    found = unwritable(wrapped)
    assert isinstance(found, FolderFull) and str(file.parent) in str(found) and words in str(found)
    assert not is_ours(wrapped)


def test_what_is_not_about_our_folders(tmp_path):
    other = PermissionError(errno.EACCES, "denied", "/somewhere/else/weights.bin")
    assert unwritable(other) is None and is_ours(other)
    assert is_ours(KeyError("x")) and not is_ours(MemoryError()) and not is_ours(KeyboardInterrupt())


def test_a_compiler_that_could_not_write():
    messages = f"/tmp/ccX.s: fatal error: error writing to /tmp/ccX.s: {os.strerror(errno.ENOSPC)}"
    assert isinstance(build_failure(messages), FolderFull)
    refused = build_failure("g++ -c main.cpp\nmain.cpp:3:1: error: expected ';'\nmain.cpp:4:1: error: 'x'")
    assert isinstance(refused, BuildFailed) and describe(refused) == "BuildFailed: main.cpp:3:1: error: expected ';'"
    assembled = build_failure("nvcc -O3 cuda.cu\nptxas fatal   : (C7602) Insufficient registers\nninja: build stopped")
    assert describe(assembled) == "BuildFailed: ptxas fatal   : (C7602) Insufficient registers"


def test_no_space_ends_a_run_with_its_code(inputs, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(FolderFull, match="no space left"):
        kernelwright.optimize(Model(), inputs, target="cpp", effort="quick", baselines="none",
                              output=tmp_path / "model_new.py")
    assert not any(tmp_path.iterdir())


def test_an_output_folder_without_space(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputFolderUnusable, match=os.strerror(errno.ENOSPC)):
        write_file(tmp_path / "model_new.py", "text", force=True)
    assert not any(tmp_path.iterdir())


def test_tracebacks_that_cannot_be_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(failures, "cache_folder", lambda: Path(tmp_path, "file"))
    assert failures.told(KeyError("x")).endswith("(KeyError: 'x')")
