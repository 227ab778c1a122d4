"""examples/generated holds what kernelwright emits today, and those files work."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch
from emitted_tools import assert_like, import_path
from places import ROOT

from kernelwright.build.module import compile_cuda, find_cuda_compiler

_specification = importlib.util.spec_from_file_location("regenerate", ROOT / "tools" / "regenerate.py")
regenerate = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(regenerate)

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CASES = [pytest.param(e, t, id=f"{e.stem}-{t}") for e in EXAMPLES for t in regenerate.DEVICES]


@pytest.mark.parametrize(("example", "target"), CASES)
def test_up_to_date(example, target):
    path = regenerate.generated_path(example, target)
    assert path.exists() and path.read_text(encoding="utf-8") == regenerate.generated_text(example, target), \
        "run tools/regenerate.py"


def test_nothing_else_is_there():
    wanted = {regenerate.generated_path(e, t) for e in EXAMPLES for t in regenerate.DEVICES}
    assert set((ROOT / "examples" / "generated").glob("*.py")) == wanted


@pytest.mark.parametrize(("example", "target"), CASES)
def test_imports_and_gives_the_original_results(example, target):
    """Kernels are compiled (for the CPU), the parameters are the original's, and a small call falls back."""
    original, emitted = import_path(example), import_path(regenerate.generated_path(example, target))
    has_kernels = hasattr(emitted, "_KERNELWRIGHT_SOURCE")
    if has_kernels and (target == "cpp" or torch.cuda.is_available()):
        assert emitted._kernelwright_library is not None, emitted._kernelwright_details
    torch.manual_seed(5)
    old = original.Model(*original.get_init_inputs())
    torch.manual_seed(5)
    new = emitted.ModelNew(*original.get_init_inputs())
    assert all(torch.equal(a, b) for a, b in zip(old.state_dict().values(), new.state_dict().values(), strict=True))
    inputs = [x[:2, ..., :8, :8].contiguous() if x.ndim > 3 else x[:2] for x in original.get_inputs()] \
        if example.stem != "square_matmul" else [torch.rand(8, 8), torch.rand(8, 8)]
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_like(new(*inputs), old(*inputs), 0.0)
    assert len(caught) == has_kernels


@pytest.mark.skipif(find_cuda_compiler() is None, reason="there is no nvcc")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_cuda_kernels_compile(example):
    emitted = import_path(regenerate.generated_path(example, "cuda"))
    if hasattr(emitted, "_KERNELWRIGHT_SOURCE"):
        assert compile_cuda(emitted._KERNELWRIGHT_SOURCE) == ""
