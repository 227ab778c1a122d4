"""Extrema with their places, of both targets, against PyTorch; and as planned from argmax, argmin, max and min."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, prod

import pytest
import test_loops_cpp
import test_loops_cuda
import torch
from loop_cases import call, contiguous
from test_capture import Of
from test_planner import check_model, kinds
from test_scans import ScanCase, special, tensors

from kernelwright.codegen.cpp.scan import argreduce as cpp
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.scan import argreduce as cuda
from kernelwright.plan.expressions import Index, Load, Reduced
from kernelwright.plan.kernels import Extremum, Store


def extremum(outer: tuple[int, ...], length: int, *, axis: int | None = None, kind: str = "max", dtype: str = "float32",
             epilogue: bool = False) -> Extremum:
    """Of a tensor of shape ``outer`` with ``length`` inserted at ``axis`` (at the end by default)."""
    place = len(outer) if axis is None else axis
    strides = list(contiguous((*outer[:place], length, *outer[place:])))
    step = strides.pop(place)
    expression = Load(0, Index((*strides, step)))
    target = Index((*contiguous(outer), 0))
    value = Reduced(0, 0)
    stores = [Store(0, target, call("mul", value, Load(1, target)) if epilogue else value),
              Store(1, target, Reduced(0, 1))]
    if epilogue:
        expression = call("abs", expression)
    return Extremum(outer, length, kind, expression, tuple(stores), (dtype, dtype) if epilogue else (dtype,),
                    (dtype, "int64"), dtype)


def ties(inputs: list[torch.Tensor]) -> None:
    """Few different values, so that most are equal."""
    inputs[0].mul_(2).round_()


def cases() -> list[ScanCase]:
    """Every schedule, both kinds, ties, NaN, infinities and edges."""
    found = []
    for kind in ("max", "min"):
        for length in (1, 3, 64, 1000, 1024, 1025, 3000):
            found.append((f"rows_{kind}_{length}", extremum((5,), length, kind=kind), ties))
        found += [(f"columns_{kind}", extremum((3, 40), 77, axis=1, kind=kind), ties),
                  (f"columns_parts_{kind}", extremum((2, 6), 3000, axis=1, kind=kind), ties),
                  (f"parts_{kind}", extremum((), 140001, kind=kind), ties),
                  (f"parts_rows_{kind}", extremum((3,), 70000, kind=kind), ties),
                  (f"all_infinite_{kind}", extremum((2,), 1500, kind=kind),
                   lambda t, s=-inf if kind == "max" else inf: t[0].fill_(s)),
                  (f"nan_{kind}", extremum((3,), 1500, kind=kind), special({7: nan, 9: nan, 1600: inf, 1700: -inf})),
                  (f"nan_parts_{kind}", extremum((), 140000, kind=kind), special({70000: nan, 139000: nan, 3: inf})),
                  (f"nan_columns_{kind}", extremum((50,), 30, axis=0, kind=kind),
                   special({100: nan, 150: nan, 101: inf, 202: -inf})),
                  (f"epilogue_{kind}", extremum((37,), 300, kind=kind, epilogue=True), ties),
                  (f"epilogue_columns_{kind}", extremum((4, 33), 20, axis=1, kind=kind, epilogue=True), None)]
    found += [("in_double", extremum((3,), 2001, dtype="float64"), ties),
              ("few_columns", extremum((9, 3), 50, axis=1), None), ("no_rows", extremum((0,), 5), None),
              ("one", extremum((), 1), None)]
    result = []
    for name, kernel, edit in found:
        sizes = [prod((*kernel.outer, kernel.length)), prod(kernel.outer)][:len(kernel.input_dtypes)]
        result.append(ScanCase(name, kernel, tuple(sizes), edit=edit))
    return result


CASES = cases()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Both targets' library and sources."""
    both = {t: [module.generate(c.kernel, c.name) for c in CASES] for t, module in (("cpp", cpp), ("cuda", cuda))}
    return {"cpp": (test_loops_cpp.build(both["cpp"], tmp_path_factory.mktemp("extrema"), "extrema"),
                    {s.name: s for s in both["cpp"]}),
            "cuda": (compile_emulated(test_loops_cuda.source_text(both["cuda"])), {s.name: s for s in both["cuda"]})}


@pytest.mark.parametrize("target", ["cpp", "cuda"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernel(case: ScanCase, target: str, libraries) -> None:
    library, sources = libraries[target]
    inputs, outputs = tensors(case)
    launch = test_loops_cpp.launch if target == "cpp" else test_loops_cuda.launch
    assert launch(library, sources[case.name], [*inputs, *outputs]) is None
    assert case.mismatch(outputs) is None, case.mismatch(outputs)


def test_nothing_has_no_extremum() -> None:
    for module in (cpp, cuda):
        with pytest.raises(ValueError, match="0 elements"):
            module.generate(extremum((3,), 0), "bad")


X = torch.randn(6, 9, generator=torch.Generator().manual_seed(5))
Y = torch.randint(-2, 3, (2, 3, 4, 5), generator=torch.Generator().manual_seed(6)).float()  # ties

# Function of x and y, and the kinds of its steps.
PROGRAMS: dict[str, tuple[Callable, list[str] | None]] = {
    "argmax": (lambda x, y: y.argmax(1), ["Extremum"]),
    "argmin_of_an_expression": (lambda x, y: (x * 2).abs().argmin(0, keepdim=True), ["Extremum"]),
    "of_all": (lambda x, y: y.argmax(), ["Extremum"]),
    "of_all_with_axes": (lambda x, y: torch.argmin(y, keepdim=True), ["Extremum"]),
    "max_and_place": (lambda x, y: tuple(torch.max(y, 1)), ["Extremum"]),
    "min_and_place": (lambda x, y: tuple(torch.min(y.exp(), -2, keepdim=True)), ["Extremum"]),
    "values_after": (lambda x, y: (torch.max(x, 1)[1], torch.max(x, 1)[0] * 2 + 1), ["Extremum"]),
    "value_alone": (lambda x, y: torch.max(x, 1)[0] * 2, ["LoopKernel"]),
    "both_ends": (lambda x, y: (*torch.max(x, 1), *torch.min(x, 1)), ["Extremum", "Extremum"]),
    "permuted": (lambda x, y: y.permute(0, 2, 3, 1).reshape(2, 20, 3).argmax(1), None),
    "place_as_number": (lambda x, y: y.argmax(1).to(y.dtype) * 2, None),
    "gathered": (lambda x, y: x.gather(1, x.argmax(1, keepdim=True)), None),
    "of_a_flattened_sum": (lambda x, y: (y + 1).flatten(1).argmin(1), None),
    "axis_of_one": (lambda x, y: x[:1].argmax(0), None),
    "after_softmax": (lambda x, y: tuple(x.softmax(1).max(1)), None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    function, steps = PROGRAMS[name]
    plan = check_model(Of(lambda m, *x: function(*x)), (X, Y))
    assert steps is None or [k for k in kinds(plan) if k != "reshape"] == steps
    check_model(Of(lambda m, *x: function(*x)), (X, Y), rewrite=True)
