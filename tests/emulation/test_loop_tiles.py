"""Kernels whose buffers are laid out in different orders: the choice of the walk, and both targets' tiles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import test_loops_cpp
import test_loops_cuda
import torch
from loop_cases import LoopCase
from transposed_cases import reduction_cases, transposed_cases

from kernelwright.codegen.cpp.loops.generate import generate as generate_cpp
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.loops.generate import generate as generate_cuda

CASES = [*transposed_cases(), *reduction_cases()]


@pytest.fixture(scope="module")
def cuda_libraries():
    sources = [generate_cuda(case.kernel, case.name) for case in CASES]
    library = compile_emulated(test_loops_cuda.source_text(sources), sanitize=True)
    return {source.name: (library, source) for source in sources}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cuda_agrees_with_evaluator(case: LoopCase, cuda_libraries) -> None:
    problem = case.mismatch(test_loops_cuda.run_case(case, cuda_libraries))
    assert problem is None, problem


@pytest.mark.parametrize("order", ["reverse", "4711"])
def test_thread_order_changes_nothing(order: str, cuda_libraries, monkeypatch) -> None:
    """A missing barrier, or a result that depends on which thread comes first, differs between orders."""
    chosen = [case for case in CASES if case.name.endswith(("even", "odd", "_20", "_4", "_outputs", "_batch_norm"))]
    before = {case.name: test_loops_cuda.run_case(case, cuda_libraries) for case in chosen}
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    for case in chosen:
        for first, second in zip(before[case.name], test_loops_cuda.run_case(case, cuda_libraries), strict=True):
            assert torch.equal(first, second), case.name


@pytest.fixture(scope="module")
def cpp_libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiles")
    sources = [generate_cpp(case.kernel, case.name) for case in CASES]
    halves = [sources[::2], sources[1::2]]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda n: test_loops_cpp.build(halves[n], folder, f"tiles{n}"), range(2)))
    return {s.name: (library, s) for library, half in zip(built, halves, strict=True) for s in half}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cpp_agrees_with_evaluator(case: LoopCase, cpp_libraries) -> None:
    library, source = cpp_libraries[case.name]
    outputs = [
        torch.zeros(size, dtype=getattr(torch, dtype))
        for size, dtype in zip(case.output_sizes, case.kernel.output_dtypes, strict=True)
    ]
    test_loops_cpp.launch(library, source, [*case.inputs(), *outputs])
    problem = case.mismatch(outputs)
    assert problem is None, problem
