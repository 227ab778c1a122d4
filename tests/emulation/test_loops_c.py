"""The C target's loop kernels and scalar functions: the cases of every target, and PyTorch in float64."""

from __future__ import annotations

import pytest
import test_loops_cpp as cpp
import torch
from loop_cases import LoopCase, kernel_of, load, store
from native_tools import compiled, launch

from kernelwright.codegen.generate import generate_kernel
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    sources = {case.name: generate_kernel(case.kernel, case.name, "c") for case in cpp.CASES}
    return compiled(list(sources.values()), "c", tmp_path_factory.mktemp("loops_c")), sources


@pytest.mark.parametrize("case", cpp.CASES, ids=lambda case: case.name)
def test_agrees_with_evaluator(case: LoopCase, kernels) -> None:
    library, sources = kernels
    outputs = [torch.zeros(size, dtype=getattr(torch, dtype))
               for size, dtype in zip(case.output_sizes, case.kernel.output_dtypes, strict=True)]
    launch(library, sources[case.name], "c", case.inputs(), outputs)
    problem = case.mismatch(outputs)
    assert problem is None, problem


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    sources = {}
    for name in FUNCTIONS:
        given = cpp.arguments_of(name)
        for compute in ("float32", "float64"):
            expression = Apply(name, (*(load(n, 1) for n in range(len(given))),
                                      *map(Constant, cpp.PARAMETERS.get(name, ()))))
            kernel = kernel_of((given[0].numel(),), (), outer_stores=[store(0, (1,), expression)],
                               inputs=(compute,) * len(given), outputs=(compute,), compute=compute)
            sources[name, compute] = generate_kernel(kernel, f"{name}_{compute}", "c")
    return compiled(list(sources.values()), "c", tmp_path_factory.mktemp("functions_c")), sources


@pytest.mark.parametrize("compute", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_function(name: str, compute: str, functions) -> None:
    library, sources = functions
    dtype = getattr(torch, compute)
    given = [x.to(dtype) for x in cpp.arguments_of(name)]
    result = torch.empty_like(given[0])
    launch(library, sources[name, compute], "c", given, [result])
    expected = cpp.reference(name, [x.double() for x in given])
    same = (result.double() == expected.to(dtype).double()) | (result.isnan() & expected.isnan())
    floor = cpp.FLOORS.get(name, 0.0) * given[0].double().abs().nan_to_num(0, 0, 0)
    unit = torch.finfo(dtype).eps / (1 if compute == "float32" else 1 / 64)
    least = torch.finfo(dtype).tiny if compute == "float32" else 1e-290
    allowed = cpp.BOUNDS.get(name, 2.6) * unit * (expected.abs() + floor) + least
    wrong = ~(same | ((result.double() - expected).abs() <= allowed))
    assert not wrong.any(), [float(x[wrong][0]) for x in (*given, result, expected)]
