"""Weights that are Inf or NaN where a window reaches beyond x, under the CPU emulation, against eager.

PyTorch leaves such products out in float32 and float16 on the CPU (oneDNN), and in all of its own transposed
convolutions; its own loops of convolutions, and oneDNN in bfloat16, multiply zeros by the weight, which is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from contraction_cases import ContractionCase, convolution
from contraction_tools import all_generated, compiled, run
from test_direct_conv import build as build_direct
from test_direct_conv import run as run_direct
from torch.nn import functional as F

from kernelwright.codegen.cuda.gemm.tiling import Tiling

WGMMA = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
MMA = Tiling("mma", rows=64, columns=16, depth=16, stages=3, promote=1)
AROUND = {False: {"padding": 1}, True: {"padding": 0}}  # of a transposed window, whatever of it is not cut off


def case_of(transposed: bool, scheme: str, dtype: str) -> ContractionCase:
    return convolution(2, 1, 8, 12, (6, 7), (3, 3), transposed=transposed, scheme=scheme, dtype=dtype,
                       **AROUND[transposed])


FORMS = [("fp16x3", "float32", WGMMA), ("fp16", "float32", MMA), ("native", "bfloat16", replace(MMA, promote=0))]
CHECKED = [(case_of(transposed, scheme, dtype), tiling) for transposed in (False, True)
           for scheme, dtype, tiling in FORMS]

pytestmark = pytest.mark.usefixtures("few_processors")


@pytest.fixture(scope="module")
def libraries():
    return compiled(all_generated(CHECKED), sanitize=False)


def kinds(values: torch.Tensor) -> torch.Tensor:
    """What each value is: 0 finite, 1 NaN, 2 Inf, -2 -Inf."""
    return values.isnan() + 2 * values.isposinf().int() - 2 * values.isneginf().int()


def eager(inputs: list[torch.Tensor], transposed: bool) -> torch.Tensor:
    """In float32 by oneDNN, which leaves out what lies beyond x."""
    assert torch.backends.mkldnn.is_available()
    x, w = (t.float() for t in inputs)
    return F.conv_transpose2d(x, w) if transposed else F.conv2d(x, w, padding=1)


def beyond(transposed: bool) -> torch.Tensor:
    """Where output positions multiply the window's first entry, which is the one that is not finite, by a zero."""
    shape = (1, 1, 6, 7)
    x, w = torch.ones(shape), torch.zeros(1, 1, 3, 3)
    w[0, 0, 0, 0] = 1
    return (F.conv_transpose2d(x, w) if transposed else F.conv2d(x, w, padding=1)) == 0


def spoiled(case: ContractionCase, value: float) -> list[torch.Tensor]:
    x, w = case.inputs()
    w[0, 0, 0, 0] = value
    return [x, w]


@pytest.mark.parametrize("value", [inf, nan])
@pytest.mark.parametrize("number", range(len(CHECKED)),
                         ids=[f"{case.name}_{tiling.core}_{tiling.depth}" for case, tiling in CHECKED])
def test_tensor_cores(number, value, libraries):
    """Sums that meet what is not finite are computed again, without what lies beyond x. Operands of 16 bits as they are
    have nothing to see them by: there a zero is multiplied, as in bfloat16 in eager."""
    case, transposed = CHECKED[number][0], number >= len(FORMS)
    inputs = spoiled(case, value)
    found, expected = kinds(run(*libraries[number], inputs)[0][0].view(case.kernel.domain)[:, 0]), \
        kinds(eager(inputs, transposed))
    assert int((expected[:, 0] != 0).sum()) and not int(expected[:, 1:].count_nonzero())
    if case.kernel.scheme == "native":
        expected[:, :1][beyond(transposed).expand(2, -1, -1, -1)] = 1
    assert torch.equal(found, expected)


@pytest.mark.parametrize("value", [inf, nan])
@pytest.mark.parametrize("transposed", [False, True])
def test_multiply_adds(transposed, value, direct):
    """Zeros are multiplied, as in PyTorch's own loops of convolutions."""
    case, library = direct[transposed]
    inputs = spoiled(case, value)
    expected = kinds(eager(inputs, transposed))
    expected[:, :1][beyond(transposed).expand(2, -1, -1, -1)] = 1
    assert torch.equal(kinds(run_direct(*library, case.kernel, inputs)[0].view(case.kernel.domain)[:, 0]), expected)


@pytest.fixture(scope="module")
def direct():
    cases = [case_of(transposed, "float32", "float32") for transposed in (False, True)]
    return list(zip(cases, build_direct([case.kernel for case in cases]), strict=True))
