"""Functions behind operands of 11 bits: who gets them, and what they are off where the operands lose nothing.

Under the CPU emulation, whose approximations are exact; `test_math_lines` has them as far off as a device's may be.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import BIASED, overlapping, reducing, softmax, totalled

from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.math_rounded import ROUNDED, of_rounded
from kernelwright.plan.expressions import Apply, Reduced
from kernelwright.plan.kernels import Reduction

TILING = Tiling("wgmma", rows=64, columns=16, depth=16, stages=3)
#: What a function may be off, of its value.
BOUND = 2.0**-18


def with_function(case: ContractionCase, *names: str) -> ContractionCase:
    """The case with functions of its sums, the last one outermost."""
    (store,) = case.kernel.stores
    value = store.expression
    for name in names:
        value = Apply(name, (value,))
    return replace(case, name="_".join((case.name, *names)),
                   kernel=replace(case.kernel, stores=(replace(store, expression=value),)))


def shares(case: ContractionCase) -> ContractionCase:
    """Softmax over channels and a sigmoid behind it."""
    case = softmax(case)
    kernel = case.kernel
    stores = tuple(replace(s, expression=Apply("sigmoid", (s.expression,))) for s in kernel.stores)
    return replace(case, name=case.name + "_sigmoid", kernel=replace(kernel, stores=stores))


def image(scheme: str = "fp16", dtype: str = "float32") -> ContractionCase:
    return convolution(3, 1, 16, 12, (7, 9), (3, 3), padding=1, scheme=scheme, dtype=dtype)


LINES = convolution(2, 1, 16, 12, (9, 32), (3, 3), padding=1, scheme="fp16")
TRANSPOSED = convolution(3, 1, 16, 12, (6, 16), (4, 4), stride=2, padding=1, transposed=True, scheme="fp16")
BOTH = replace(TILING, parities=2, stages=2)
CHECKED: list[tuple[ContractionCase, Tiling, set[str]]] = [
    (with_function(image(), "sigmoid"), TILING, {"sigmoid"}),
    (*overlapping(with_function(LINES, "silu"), TILING), {"sigmoid"}),
    (with_function(image(), "mish", "mish"), replace(TILING, pingpong=2), {"mish"}),
    (with_function(LINES, "mish"), replace(TILING, from_registers=True), {"mish"}),
    (with_function(image(), "gelu_tanh"), replace(TILING, sector_aligned=True), {"gelu_tanh"}),
    (with_function(LINES, "tanh"), replace(TILING, from_registers=True), {"tanh"}),
    (with_function(image(), "exp"), TILING, {"exp"}),
    (with_function(TRANSPOSED, "sigmoid"), BOTH, {"sigmoid"}),
    (shares(TRANSPOSED), BOTH, {"sigmoid", "exp"}),
    (shares(TRANSPOSED), replace(BOTH, from_registers=True), {"sigmoid", "decay"}),
    (reducing(TRANSPOSED, (Reduction("logsumexp", BIASED),), ((False, Reduced(1)),)), BOTH, {"decay"}),
    (with_function(matmul(70, 40, 36, scheme="fp16"), "silu"),
     Tiling("mma", rows=64, columns=64, depth=32, stages=2), {"sigmoid"}),
    (with_function(image("native", "float16"), "sigmoid"), TILING, {"sigmoid"}),
]


def whole_numbers(case: ContractionCase) -> list[torch.Tensor]:
    """Inputs that 11 bits hold, some of whose products' sums are large: 16ths of whole numbers."""
    return [(torch.clamp(t.float() * 8, -20, 20).round() / 16).to(t.dtype) for t in case.inputs()]


@pytest.fixture(scope="module")
def libraries():
    return compiled(all_generated([(case, tiling) for case, tiling, _ in CHECKED]))


def called(text: str) -> set[str]:
    return set(re.findall(r"\bkw_rounded_(\w+)\(", text))


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=[
    f"{case.name}-{tiling.core}{number}" for number, (case, tiling, _) in enumerate(CHECKED)])
def test_exact_operands_leave_the_error_of_the_function(number, libraries):
    case, _, functions = CHECKED[number]
    assert called(libraries[number][1].text) == functions
    inputs = whole_numbers(case)
    found = run(*libraries[number], inputs)[0]
    for actual, expected in zip(found, case.expected(inputs), strict=True):
        rounding = 2.0**-11 if actual.dtype == torch.float16 else 0.0
        torch.testing.assert_close(actual.double(), expected, rtol=2 * BOUND + rounding,
                                   atol=1e-7 if actual.dtype == torch.float16 else 1e-12)


def exactly(case: ContractionCase) -> ContractionCase:
    return replace(case, name=case.name + "_exactly", kernel=replace(case.kernel, exact_functions=True))


@pytest.mark.parametrize("case", [
    with_function(image("fp16x3"), "sigmoid"), exactly(with_function(image(), "mish")),
    exactly(with_function(image("native", "float16"), "sigmoid")),
    totalled(with_function(image(), "sigmoid"), ("sum", Reduced(0))),
    totalled(image(), ("sum", Apply("mish", (Reduced(0),))), ordinary=False)], ids=lambda case: case.name)
def test_others_keep_exact_functions(case):
    """Operands of 22 bits, totals, in which what operands lose is gone, and who asks for them."""
    (source,) = all_generated([(case, replace(TILING, promote=1) if case.kernel.scheme == "fp16x3" else TILING)])
    assert not called(source.text) and re.search(r"kw_(sigmoid|mish)\(", source.text)


def test_whole_names_are_exchanged():
    text = "kw_sigmoid(x) + kw_sigmoidal(x) + a_kw_mish(y) + kw_mish(kw_decay(-1.0f)) + kw_mish"
    assert of_rounded(text) == "kw_rounded_sigmoid(x) + kw_sigmoidal(x) + a_kw_mish(y) + " \
                               "kw_rounded_mish(kw_rounded_decay(-1.0f)) + kw_mish"
    assert of_rounded(of_rounded(text)) == of_rounded(text) and len(ROUNDED) == 6
